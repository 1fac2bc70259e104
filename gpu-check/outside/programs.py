"""Compiled programs that check their own results: one process a case."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
from pathlib import Path

from outside.cases import FAIL, PASS, SKIP, Outcome, last_line
from outside.child import Missing, Suite

# Exit status of NVIDIA's samples that cannot run on this machine.
EXIT_WAIVED = 2
OUTPUT_CHARACTERS_MAX = 1 << 20
WAIVED = re.compile(r"\bwaiv|not supported on this|requires? (a )?(two|2|at least two)|skipping", re.IGNORECASE)
FAILED = re.compile(r"\bFAIL(ED|URE)?\b|\bmismatch|\bincorrect\b|CUDA error|cudaError|is wrong", re.IGNORECASE)
# Lines that say how it went; their numbers are times more often than results.
TELLING = re.compile(r"pass|fail|error|correct|verif|match|success|wrong|valid", re.IGNORECASE)
NUMBER = re.compile(r"0x[0-9a-f]+|[-+]?\d[\d.,]*(e[-+]?\d+)?", re.IGNORECASE)


class Programs(Suite):
    """Programs in the list that `outside/build.py` wrote."""

    def __init__(self, sources: Path, name: str, environment: dict[str, str] | None = None) -> None:
        self._sources = sources.resolve()
        table = self._sources / "built" / f"{name}.json"
        if not table.exists():
            raise Missing(f"no compiled programs: {table.name} is missing in {table.parent} (see outside/build.py)")
        self._programs = json.loads(table.read_text())
        self._environment = environment

    def cases(self) -> list[str]:
        return list(self._programs)

    def run(self, name: str) -> Outcome:
        entry = self._programs[name]
        command = [str(self._sources / "built" / entry["program"]), *entry["arguments"]]
        # A file and no pipe: whatever the program leaves running must not keep us waiting.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                command,
                cwd=self._sources / entry["folder"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )
            output.seek(0)
            text = output.read(OUTPUT_CHARACTERS_MAX).decode(errors="replace")
        print(f"--- {name}: exit status {done.returncode}\n{text[-4000:]}", flush=True)
        return judge(done.returncode, text)


def judge(code: int, text: str) -> Outcome:
    """Reads an outcome from a program's exit status and what it printed."""
    failed = [line for line in text.splitlines() if FAILED.search(line)]
    if code == EXIT_WAIVED and WAIVED.search(text) and not failed:
        return Outcome(SKIP, detail=last_line(text))
    if code != 0:
        return Outcome(FAIL, detail=f"exit status {code}: {last_line(failed[0] if failed else text)}")
    lines = sorted({NUMBER.sub("N", line.strip()) for line in text.splitlines() if TELLING.search(line)})
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return Outcome(PASS, digest=digest, detail=last_line(text))

#!/usr/bin/env python3
"""Says how much of each fuzz target's code its inputs reach, and makes the corpora that reach it.

    python3 tools/fuzz_coverage.py run RESULTS [--tries 20000] [--target NAME]   measures; JSON
    python3 tools/fuzz_coverage.py collect [--seconds 60] [--target NAME]        crates/fuzz/corpus
    python3 tools/fuzz_coverage.py page RESULTS PAGE                             the table, from the JSON

Both build the fuzzer with a counter for each region of the workspace's code; `run` needs rustup's component llvm-tools.
A target's code is the functions that it enters, with its corpus or without it, in the workspace's crates but for the
fuzzer's own. A function that is generic is one, whatever it is made for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORMAT = 1
CARGO = os.environ.get("CARGO", "cargo")
BUILT = Path(os.environ.get("FUZZ_COVERAGE_TARGET", ROOT / "target" / "fuzz-coverage"))
FUZZER = BUILT / "debug" / "outboard-fuzz"
BEGIN, END = "<!-- fuzz coverage -->", "<!-- end of fuzz coverage -->"
# The end of slow targets' tries.
SECONDS_MAX = 20
# A region of code, of the kinds that llvm-cov has; the others are gaps and branches.
CODE = 0

Place = tuple[int, int, int, int]


@dataclass
class Function:
    """A function's regions, and those that were entered."""

    regions: set[Place] = field(default_factory=set)
    entered: set[Place] = field(default_factory=set)

    def lines(self) -> tuple[set[int], set[int]]:
        """Returns the lines with code, and those whose innermost region was entered."""
        innermost: dict[int, bool] = {}
        # What begins later, or ends earlier, is inside.
        for region in sorted(self.regions, key=lambda one: (one[0], one[1], -one[2], -one[3])):
            for line in range(region[0], region[2] + 1):
                # Two regions that share a line: it counts if either was entered.
                starts_here = line == region[0]
                was = innermost.get(line, False) and starts_here
                innermost[line] = was or region in self.entered
        return set(innermost), {line for line, is_entered in innermost.items() if is_entered}


# By file and the place where the function begins.
Functions = dict[tuple[str, Place], Function]


def llvm(tool: str) -> Path:
    rustc = [os.environ.get("RUSTC", "rustc"), "--print"]
    sysroot = subprocess.run([*rustc, "sysroot"], check=True, capture_output=True, text=True).stdout.strip()
    host = subprocess.run([*rustc, "host-tuple"], check=True, capture_output=True, text=True).stdout.strip()
    path = Path(sysroot) / "lib" / "rustlib" / host / "bin" / tool
    if not path.exists():
        raise SystemExit(f"{path} is missing: rustup component add llvm-tools")
    return path


def build() -> None:
    # Build scripts are instrumented, too, and leave profiles of their own.
    BUILT.mkdir(parents=True, exist_ok=True)
    wrapper, profile = ROOT / "tools" / "instrumented.sh", BUILT / "build-script.profraw"
    env = {**os.environ, "RUSTC_WORKSPACE_WRAPPER": str(wrapper), "LLVM_PROFILE_FILE": str(profile)}
    argv = [CARGO, "build", "--quiet", "--workspace", "--bin", "outboard-fuzz", "--features", "outboard-fuzz/counters"]
    subprocess.run([*argv, "--target-dir", str(BUILT)], check=True, cwd=ROOT, env=env)


def targets() -> list[str]:
    """Returns the names of all targets, which the fuzzer says if there is none of a name."""
    env = {**os.environ, "LLVM_PROFILE_FILE": str(BUILT / "unused.profraw")}
    said = subprocess.run([FUZZER, "--target", "?"], capture_output=True, text=True, env=env).stderr
    return said.partition("there are ")[2].strip().split(", ")


def fuzz(target: str, options: list[str], profile: Path) -> int:
    """Runs the fuzzer, which leaves a profile. Returns the number of tries."""
    argv = [FUZZER, "--target", target, *options]
    env = {**os.environ, "LLVM_PROFILE_FILE": str(profile)}
    done = subprocess.run(argv, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        raise SystemExit(f"{target}:\n{done.stdout}{done.stderr}")
    return int(done.stdout.split()[1])


def functions(profile: Path, folder: Path) -> Functions:
    """Returns the functions of the workspace, but for those of the fuzzer itself."""
    merged = folder / "merged.profdata"
    subprocess.run([llvm("llvm-profdata"), "merge", "-sparse", profile, "-o", merged], check=True)
    argv = [llvm("llvm-cov"), "export", FUZZER, f"-instr-profile={merged}", "--skip-expansions"]
    exported = subprocess.run(argv, check=True, capture_output=True).stdout
    found: Functions = {}
    for one in json.loads(exported)["data"][0]["functions"]:
        file = Path(one["filenames"][0])
        if not file.is_relative_to(ROOT / "crates") or file.is_relative_to(ROOT / "crates" / "fuzz"):
            continue
        regions = [region for region in one["regions"] if region[7] == CODE and region[5] == 0]
        begin = min(tuple(region[:4]) for region in regions) if regions else (0, 0, 0, 0)
        function = found.setdefault((str(file.relative_to(ROOT)), begin), Function())
        for region in regions:
            function.regions.add(tuple(region[:4]))
            if region[4]:
                function.entered.add(tuple(region[:4]))
    return found


def share(found: Functions, keys: set[tuple[str, Place]]) -> dict[str, int]:
    """Returns how much of these functions was reached."""
    chosen = [found[key] for key in keys]
    lines = [function.lines() for function in chosen]
    return {
        "functions": sum(1 for function in chosen if function.entered),
        "functions_of": len(chosen),
        "regions": sum(len(function.entered) for function in chosen),
        "regions_of": sum(len(function.regions) for function in chosen),
        "lines": sum(len(entered) for _, entered in lines),
        "lines_of": sum(len(all_) for all_, _ in lines),
    }


def entered(found: Functions) -> set[tuple[str, Place]]:
    return {key for key, function in found.items() if function.entered}


def measure(target: str, folder: Path, tries: int) -> dict[str, object]:
    """Returns what a target's tries reach, without its corpus and with it. Their profiles stay in the folder."""
    folder.mkdir()
    found, done = {}, {}
    for kind, options in {"without_corpus": ["--without-corpus"], "with_corpus": []}.items():
        profile = folder / f"{kind}.profraw"
        done[kind] = fuzz(target, [*options, "--tries", str(tries), "--seconds", str(SECONDS_MAX)], profile)
        found[kind] = functions(profile, folder)
    keys = entered(found["with_corpus"]) | entered(found["without_corpus"])
    corpus = ROOT / "crates" / "fuzz" / "corpus" / f"{target}.zst"
    reached = {kind: {"tries": done[kind], **share(found[kind], keys)} for kind in found}
    print(target, reached, flush=True)
    return {"corpus_bytes": corpus.stat().st_size if corpus.exists() else 0, **reached}


def run(results: Path, chosen: list[str], tries: int, jobs: int) -> None:
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(jobs) as pool:
        folder = Path(temporary)
        each = pool.map(lambda target: measure(target, folder / target, tries), chosen)
        measured = dict(zip(chosen, each, strict=True))
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    machine = {
        "date_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit,
        "cores": os.cpu_count(),
    }
    said = {
        "format": FORMAT,
        "machine": machine,
        "tries": tries,
        "seconds_max": SECONDS_MAX,
        "targets": measured,
    }
    results.write_text(json.dumps(said, indent=1) + "\n")


def files() -> list[str]:
    """Returns the repository's files of the formats that are decoded; each target keeps what is new to it."""
    argv = ["git", "ls-files", "*.ptx", "*.fatbin", "*.cubin", "*.a"]
    return subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()


def collect(chosen: list[str], seconds: float) -> None:
    given = [word for file in files() for word in ("--with", str(ROOT / file))]
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "LLVM_PROFILE_FILE": f"{folder}/unused.profraw"}
        for target in chosen:
            argv = [FUZZER, "--collect", "--target", target, "--seconds", f"{seconds:.0f}"]
            subprocess.run([*argv, *given], check=True, env=env)


def percent(of: dict[str, int], what: str) -> str:
    return f"{100 * of[what] / max(1, of[f'{what}_of']):.0f} %"


def table(said: dict[str, object]) -> str:
    rows = [
        "| target | tries | functions | lines | regions | regions without corpus | corpus, bytes |",
        "|---|---|---|---|---|---|---|",
    ]
    measured: dict[str, dict[str, dict[str, int]]] = said["targets"]  # type: ignore[assignment]
    for target, one in measured.items():
        with_, without = one["with_corpus"], one["without_corpus"]
        cells = [f"{with_['tries']:,}", str(with_["functions_of"]), percent(with_, "lines"), percent(with_, "regions")]
        cells += [percent(without, "regions"), f"{one['corpus_bytes']:,}"]
        rows.append(f"| `{target}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def page(results: Path, path: Path) -> None:
    text = path.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    path.write_text(f"{before}{BEGIN}\n{table(json.loads(results.read_text()))}\n{END}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="do", required=True)
    one = commands.add_parser("run")
    one.add_argument("results", type=Path)
    one.add_argument("--tries", type=int, default=20_000)
    one.add_argument("--jobs", type=int, default=os.cpu_count())
    one.add_argument("--target")
    one = commands.add_parser("collect")
    one.add_argument("--seconds", type=float, default=60)
    one.add_argument("--target")
    one = commands.add_parser("page")
    one.add_argument("results", type=Path)
    one.add_argument("page", type=Path)
    arguments = parser.parse_args()
    if arguments.do == "page":
        page(arguments.results, arguments.page)
        return 0
    if arguments.do == "run":
        llvm("llvm-cov")
    build()
    chosen = [arguments.target] if arguments.target else targets()
    if arguments.do == "run":
        run(arguments.results, chosen, arguments.tries, arguments.jobs)
    else:
        collect(chosen, arguments.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The long form of tests/test_soak.py: all links at once, each by a seed of its own, for `--seconds`.

usage: PYTHONPATH=tests:tests/rdma:tools python tests/soak/long.py RESULT [--seconds N] [--seed S] [--links shm,tcp]
(make calls-soak). The link `rdma` runs in a guest, after the others.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness import OUTBOARD, ROOT, TEST_PROGRAMS, start_server

PROGRAM = TEST_PROGRAMS / "soak_calls.py"
# Beside the mix: steps alone, and a machine with other work.
BESIDE_S_MAX = 1_800
ALONE, ALONE_IN_GUEST = 6, 1
# A guest beside other work may take longer than a program waits for a connection.
CONNECTS_MAX = 5
TEXT_MAX = 6_000

Run = Callable[[list[str], float], tuple[int, str, str]]


def said(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip().partition("\n")[0]


def soak(link: str, seconds: float, seed: int, alone: int, run: Run, *options: str) -> dict[str, object]:
    """A run over a link: its own report, or how it ended."""
    start = time.monotonic()
    arguments = ["--seconds", str(seconds), "--seed", str(seed), "--alone", str(alone), *options]
    command = [sys.executable, str(PROGRAM), *arguments]
    status, out, errors = run(command, seconds + BESIDE_S_MAX)
    found: dict[str, object] = {"link": link, "seed": seed, "took_s": round(time.monotonic() - start, 1)}
    lines = out.splitlines()
    if status == 0 and lines:
        return {**found, "right": True, **json.loads(lines[-1])}
    return {**found, "right": False, "status": status, "said": f"{out[-TEXT_MAX:]}\n{errors[-TEXT_MAX:]}"}


def here(links: list[str], seconds: float, seed: int) -> list[dict[str, object]]:
    """All links of this machine at once, through one server."""
    with tempfile.TemporaryDirectory() as folder:
        server = start_server(Path(folder))

        def run(link: str) -> Run:
            def through(command: list[str], seconds_max: float) -> tuple[int, str, str]:
                done = server.run(link, *command, timeout=seconds_max)
                return done.returncode, done.stdout, done.stderr

            return through

        with concurrent.futures.ThreadPoolExecutor(len(links)) as pool:
            runs = [
                pool.submit(soak, link, seconds, seed + number, ALONE, run(link)) for number, link in enumerate(links)
            ]
            found = [one.result() for one in runs]
        log = server.log.read_text()
        status = server.stop()
    if status != 0 or "panicked" in log:
        found.append({"link": "server", "right": False, "status": status, "said": log[-TEXT_MAX:]})
    return found


def in_guest(seconds: float, seed: int) -> dict[str, object]:
    """Over RDMA, between two devices of a guest."""
    from cable import ports_of
    from serving import serving

    from rdma_guest.guest import one_guest
    from rdma_guest.image import prepare

    with one_guest(prepare()) as guest:
        server, client = ports_of(guest)
        with serving(server, client, more=("--spare", "1")) as gpu:

            def through(command: list[str], seconds_max: float) -> tuple[int, str, str]:
                done = gpu.start(*command).wait(seconds_max)
                for _ in range(CONNECTS_MAX):
                    if "no server at" not in done.output:
                        break
                    done = gpu.start(*command).wait(seconds_max)
                return done.status, done.output, gpu.command.output()

            # The management library waits 5 s for a connection of its own: less than a guest may take.
            return soak("rdma", seconds, seed, ALONE_IN_GUEST, through, "--without", "nvml")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--seconds", type=float, default=1_800)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--links", default="shm,tcp")
    options = parser.parse_args()
    links = options.links.split(",")
    result: dict[str, object] = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, Linux {platform.release()}, software device",
        "versions": [said(OUTBOARD, "--version"), f"Python {platform.python_version()}"],
        "build": OUTBOARD.parent.name,
        "commit": said("git", "rev-parse", "HEAD"),
        "load_before": os.getloadavg(),
    }
    runs = here([link for link in links if link != "rdma"], options.seconds, options.seed) if links != ["rdma"] else []
    if "rdma" in links:
        runs.append(in_guest(options.seconds, options.seed + len(links)))
    result |= {"load_after": os.getloadavg(), "runs": runs}
    options.result.write_text(json.dumps(result, indent=1) + "\n")
    wrong = [one for one in runs if not one["right"]]
    if wrong:
        print(*(one["said"] for one in wrong), sep="\n", file=sys.stderr)
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())

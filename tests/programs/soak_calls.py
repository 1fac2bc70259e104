"""A long program of driver calls: steps in an order by seed, in one process, each with the result that it must have.

`soak_calls.py --seconds 120 --seed 7` first runs each kind of step alone, `--alone` different ones of it three times,
then all in a random order with random sizes. Prints, as JSON, how often each kind ran, its median time in the mix, and
how long the very steps that ran alone took in the mix compared with then. The first wrong result ends it, and is named
with the step's own seed: `--only NAME --replay SEED` runs that one again.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from mixed_calls import Wrong
from soak_steps import LIBRARIES_MAX, STEPS, Soak

# A step that takes longer hangs: all threads' stacks are printed, and the program ends.
STEP_S_MAX = 300
# Times that each step runs alone.
ROUNDS_ALONE = 3
SEEDS = 1 << 30


class Mix:
    """Runs steps and keeps their times."""

    def __init__(self, soak: Soak) -> None:
        self.soak = soak
        self.looked_at = self.steps = 0
        self.alone: dict[tuple[str, int], list[float]] = defaultdict(list)
        self.mixed: dict[tuple[str, int], list[float]] = defaultdict(list)
        self.times: dict[str, list[float]] = defaultdict(list)

    def step(self, name: str, seed: int) -> float:
        faulthandler.dump_traceback_later(STEP_S_MAX, exit=True)
        start = time.perf_counter()
        try:
            self.looked_at += STEPS[name](self.soak, random.Random(seed))
        except (Wrong, AssertionError) as failure:
            raise SystemExit(f"step {self.steps}, {name} by seed {seed}: {failure}") from failure
        self.steps += 1
        return (time.perf_counter() - start) * 1e3

    def run_alone(self, names: list[str], variants: int, choice: random.Random) -> None:
        """The same steps in a row."""
        for name in names:
            for seed in [choice.randrange(SEEDS) for _ in range(variants)]:
                self.step(name, seed)
                self.alone[name, seed] = [self.step(name, seed) for _ in range(ROUNDS_ALONE)]

    def run(self, names: list[str], seconds: float, steps: int, choice: random.Random) -> None:
        """A step is one of those that ran alone as often as a new one."""
        known = defaultdict(list)
        for name, seed in self.alone:
            known[name].append(seed)
        end, done = time.monotonic() + seconds, 0
        while time.monotonic() < end or done < steps:
            name = choice.choice(names)
            is_known = bool(known[name]) and choice.random() < 0.5
            seed = choice.choice(known[name]) if is_known else choice.randrange(SEEDS)
            took = self.step(name, seed)
            self.times[name].append(took)
            if is_known:
                self.mixed[name, seed].append(took)
            done += 1

    def kinds(self) -> dict[str, dict[str, float]]:
        """By name: how often, median milliseconds, and those of the steps that ran alone, in the mix and then."""
        found = {}
        for name, times in sorted(self.times.items()):
            found[name] = {"count": len(times), "median_ms": round(statistics.median(times), 3)}
            both = [one for one in self.alone if one[0] == name and self.mixed[one]]
            if both:
                alone = [statistics.median(self.alone[one]) for one in both]
                mixed = [statistics.median(self.mixed[one]) for one in both]
                found[name] |= {
                    "alone_ms": round(statistics.median(alone), 3),
                    "mixed_ms": round(statistics.median(mixed), 3),
                    "ratio": round(statistics.median(m / a for m, a in zip(mixed, alone, strict=True)), 3),
                }
        return found


def resident_mib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) >> 10


def runtimes(folder: Path) -> list[Path]:
    """Copies of CUDA's runtime, if this Python has one: each is a library of its own for the loader."""
    found = [file for place in sys.path for file in sorted(Path(place).glob("nvidia/*/lib/libcudart.so.*"))]
    copies = [folder / f"{number}-{found[0].name}" for number in range(LIBRARIES_MAX if found else 0)]
    for copy in copies:
        shutil.copy(found[0], copy)
    return copies


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0, help="how long the mix lasts at least")
    parser.add_argument("--steps", type=int, default=0, help="how many steps it has at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--alone", type=int, default=4, help="steps of each kind that run alone first")
    parser.add_argument("--only", default=",".join(STEPS), help="kinds of steps, with commas between them")
    parser.add_argument("--without", default="", help="kinds that are left out")
    parser.add_argument("--replay", type=int, help="the seed of one step, which runs once")
    options = parser.parse_args()
    without = options.without.split(",")
    names = [name for name in options.only.split(",") if name not in without]
    choice = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        mix = Mix(Soak(runtimes(Path(folder))))
        if options.replay is not None:
            print(f"{mix.step(names[0], options.replay):.3f} ms")
            return 0
        begin = time.monotonic()
        mix.run_alone(names, options.alone, choice)
        alone_s, alone_steps, before = time.monotonic() - begin, mix.steps, resident_mib()
        print("under way", file=sys.stderr, flush=True)
        mix.run(names, options.seconds, options.steps, choice)
        faulthandler.cancel_dump_traceback_later()
        mix.soak.close()
    result = {
        "seed": options.seed,
        "seconds": round(time.monotonic() - begin - alone_s, 1),
        "steps": mix.steps - alone_steps,
        "steps_alone": alone_steps,
        "bytes_right": mix.looked_at,
        "resident_mib": {"before": before, "after": resident_mib()},
        "kinds": mix.kinds(),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

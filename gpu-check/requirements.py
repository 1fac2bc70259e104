#!/usr/bin/env python3
"""Compares the predictions of `outboard require` from a recording with programs run over emulated
networks.

    python3 gpu-check/requirements.py --outboard target/release/outboard --out docs/results/paper-requirements.json

For each program: it is recorded once on this machine's GPU; then one process on that GPU and one behind an emulated
network take turns, network after network, round by round; and the recording is asked for the same networks. What is
predicted is the overhead: the predicted step time is that overhead on the measured local step. Beside them stands the
largest round-trip time that is predicted to keep the budget: the program runs at it, at half and at double.

The grid is that of Figure 9 of "Characterizing Network Requirements for GPU API Remoting in AI Applications".
Programs that are not asked for stay in the results as they are; `requirements_page.py` makes the document.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import kept
import machine
from process import Runner
from requirement_cases import CASES
from requirements_stage import REQUIRE_S_MAX, Rounds, Setting, Stage, StageError
from server import Server, ServerError
from speed import names
from suite import ROOT, Group
from turns import Case, PlayerError, PlayerSkip, significant

FORMAT_VERSION = 1
RTTS_US = (2, 5, 10, 20, 50, 100)
BANDWIDTHS_GBPS = (1, 10, 40, 100, 200)
# The requirement that is checked by running programs at it.
BUDGET = "5%"
CHECK_GBPS = 100
ROUNDS_MAX = 5
CHECK_ROUNDS = 8
# A step that seems this much longer over one network than over a harder one is measured again, at
# most this often.
AGAIN_BEYOND = 0.02
AGAIN_MAX = 6
START_S_MIN = 60.0
TURN_S = 0.12
PARTS = ("record", "cost", "links", "grid", "checks", "predict")
BUDGET_S = 900.0
SERVER_START_S = 60.0
CALIBRATE_S_MAX = 120.0
EXIT_FAILED = 1
EXIT_USAGE = 2
# `outboard require`: no network meets the budget.
EXIT_NONE_MEETS = 3


def network_name(rtt_us: float, gbps: float) -> str:
    return f"rtt={rtt_us:g}us,bandwidth={gbps:g}Gbps"


def calibrate(setting: Setting) -> None:
    """Measures the cost of sending and answering here, over an emulated network without delay."""
    command = [*setting.runner.outboard, "calibrate", "--gpu", setting.server.urls["shm"]]
    environment = {**os.environ, "OUTBOARD_EMULATE": "rtt=1ns"}
    command += ["--json", str(setting.constants)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=CALIBRATE_S_MAX)
    if done.returncode != 0:
        raise ServerError(f"outboard calibrate: {done.stderr.strip()}")


def require(setting: Setting, recording: Path, step_ms: float) -> dict[str, Any]:
    """Returns the answer of `outboard require`."""
    if not recording.exists():
        raise StageError(f"there is no recording {recording}")
    command = [*setting.runner.outboard, "require", str(recording), "--budget", BUDGET, "--json", "-"]
    command += ["--constants", str(setting.constants)]
    if step_ms > 0:
        command += ["--step", f"{step_ms:g}ms"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=REQUIRE_S_MAX)
    if done.returncode not in (0, EXIT_NONE_MEETS):
        raise StageError(done.stderr.strip() or f"outboard require ended with {done.returncode}")
    return dict(json.loads(done.stdout))


def predictions(answer: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Returns for each network the overhead that both models predict, on the answer's grid."""
    answered = answer["grid"]
    found: dict[str, dict[str, float]] = {}
    for bits, row in zip(answered["bandwidths"], answered["overhead"], strict=True):
        for rtt_ns, overhead in zip(answered["rtts_ns"], row, strict=True):
            found[network_name(rtt_ns / 1e3, bits / 1e9)] = overhead
    return found


def grid(options: argparse.Namespace) -> list[str]:
    return [network_name(rtt, gbps) for gbps in options.gbps for rtt in options.rtts_us]


def links(rounds: Rounds) -> dict[str, Any]:
    """Returns the figures of each link without a network, over one local time."""
    here_ms = local_ms(rounds)
    return {link: figures(pairs, here_ms) for link, pairs in rounds.items()} | {"local_ms": significant(here_ms)}


def conditions(network: str) -> tuple[float, float]:
    """Returns a network's round trip in microseconds and its bandwidth in Gbps."""
    rtt, _, gbps = network.partition(",bandwidth=")
    return float(rtt.removeprefix("rtt=").removesuffix("us")), float(gbps.removesuffix("Gbps"))


def suspects(rounds: Rounds) -> list[str]:
    """Returns networks over which the program seemed slower than over one that is harder in every
    way, the worst first: the machine was slow at that time. Predictions do not influence this
    choice."""
    harder = {conditions(network): network for network in rounds}
    least = {network: min(there for _, there in pairs) for network, pairs in rounds.items() if pairs}
    found: list[tuple[float, str]] = []
    for (rtt, gbps), network in harder.items():
        if network not in least:
            continue
        bounds = [
            least[name]
            for (other_rtt, other_gbps), name in harder.items()
            if name in least and other_rtt >= rtt and other_gbps <= gbps
        ]
        excess = least[network] / min(bounds) - 1
        if excess > AGAIN_BEYOND:
            found.append((excess, network))
    return [network for _, network in sorted(found, reverse=True)]


def checks(answer: dict[str, Any]) -> dict[str, str]:
    """Returns networks at, at half and at double the largest round-trip time predicted to keep the
    budget."""
    [largest] = [r["rtt_ns"]["simulated"] for r in answer["rtt_max"] if r["bits_per_s"] == CHECK_GBPS * 1e9]
    if largest["limit"] != "at" or largest["value"] <= 0:
        return {}
    rtt_us = largest["value"] / 1e3
    return {name: network_name(round(rtt_us * by, 3), CHECK_GBPS) for name, by in CHECKED.items()}


CHECKED = {"half": 0.5, "at": 1.0, "double": 2.0}


def one(setting: Setting, case: Case, entry: dict[str, Any]) -> dict[str, Any]:
    """Measures the parts of one program that are asked for; existing results of other parts stay."""
    parts = frozenset(setting.options.parts)
    kept_names = ("machine", "recording_overhead", "recording_overhead_machine", "links")
    found: dict[str, Any] = {name: entry[name] for name in kept_names if name in entry}
    found["title"] = f"{case.title}, {case.group}"
    rounds = {name: network["rounds_ms"] for name, network in entry.get("networks", {}).items()}
    checked = entry.get("checks", {})
    if parts == {"predict"} and setting.options.constants is None and "constants" in entry:
        # Constants of the machine that this program was measured on.
        setting.constants.write_text(json.dumps(entry["constants"]))
    with contextlib.ExitStack() as stack:
        if parts - {"predict"}:
            stage = stack.enter_context(contextlib.closing(Stage(setting, case, parts)))
        if "record" in parts:
            stage.record()
        if "cost" in parts:
            found["recording_overhead"] = stage.cost()
        if parts == {"cost"}:
            # Needs no recording, and is independent of what another machine may have measured.
            return entry | found | {"title": found["title"], "recording_overhead_machine": setting.about}
        if "links" in parts:
            found["links"] = links(stage.measure_links(CHECK_ROUNDS))
        if "grid" in parts:
            rounds = stage.measure(grid(setting.options), setting.options.rounds)
            for _ in range(AGAIN_MAX):
                slow = suspects(rounds) if time.monotonic() < setting.deadline else []
                for network, pairs in (stage.measure(slow, 1) if slow else {}).items():
                    rounds[network] += pairs
        recording = setting.recordings / f"{case.name}.trace"
        answer = require(setting, recording, local_ms(rounds))
        at = checks(answer)
        if "checks" in parts and "grid" not in parts:
            # The known local step may be another machine's.
            at = checks(require(setting, recording, stage.local_ms(CHECK_ROUNDS)))
        if "checks" in parts and not at:
            # Every network keeps the budget, or none does.
            checked = {}
        elif "checks" in parts:
            measured = stage.measure(list(at.values()), CHECK_ROUNDS)
            checked = {name: {"network": at[name], "rounds_ms": measured[at[name]]} for name in at}
    return found | judged(answer, rounds, checked)


def judged(answer: dict[str, Any], rounds: Rounds, checked: dict[str, Any]) -> dict[str, Any]:
    """Returns predictions and measurements side by side."""
    predicted, here_ms = predictions(answer), local_ms(rounds)
    networks = {}
    for network, pairs in rounds.items():
        if network not in predicted:
            raise StageError(f"outboard require says nothing of {network}")
        measured = figures(pairs, here_ms)
        errors = {
            model: significant((1 + predicted[network][model]) / (1 + measured["overhead"]) - 1)
            for model in ("simulated", "closed_form")
        }
        networks[network] = measured | {"predicted_overhead": predicted[network], "error": errors}
    check_ms = local_ms({name: check["rounds_ms"] for name, check in checked.items()})
    return {
        "recorded": answer["recording"],
        "constants": answer["constants"],
        "local_ms": significant(here_ms) if rounds else None,
        "networks": networks,
        "summary": summary(networks) if networks else None,
        "noise": noise(rounds),
        "checks": {
            name: {"network": check["network"], **figures(check["rounds_ms"], check_ms)}
            for name, check in checked.items()
        },
        "rtt_max": answer["rtt_max"],
    }


def local_ms(rounds: Rounds) -> float:
    """Returns a local step's time without the machine's slow seconds: the median over networks of
    the least of each one's rounds."""
    least = [min(here for here, _ in pairs) for pairs in rounds.values() if pairs]
    return statistics.median(least) if least else 0.0


def noise(rounds: Rounds) -> dict[str, float]:
    """Returns the spread of the same step, measured as often and at the same times, without a
    network."""
    here_ms = local_ms(rounds)
    off = sorted(abs(min(here for here, _ in pairs) / here_ms - 1) for pairs in rounds.values())
    if not off:
        return {}
    return {"median": significant(statistics.median(off)), "p90": significant(off[round(0.9 * (len(off) - 1))])}


def figures(pairs: list[list[float]], here_ms: float) -> dict[str, Any]:
    """Returns the figures of a network. Its least round is taken from as many rounds as each of
    those of the local time."""
    least = min(there for _, there in pairs)
    return {"ms": least, "rounds_ms": pairs, "overhead": significant(least / here_ms - 1)}


def summary(networks: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Returns for each model the median and the 90th percentile of the absolute errors."""
    found = {}
    for model in ("simulated", "closed_form"):
        sizes = sorted(abs(entry["error"][model]) for entry in networks.values())
        found[model] = {
            "median": significant(statistics.median(sizes)),
            "p90": significant(sizes[round(0.9 * (len(sizes) - 1))]),
            "max": significant(sizes[-1]),
        }
    return found


def main(arguments: list[str] | None = None, cases: tuple[Case, ...] = CASES, group: Group | None = None) -> int:
    options = _parse(arguments)
    known = {case.name for case in cases} | {case.group for case in cases}
    if unknown := sorted(set(options.only) - known):
        print(
            f"requirements: there is no case {', '.join(unknown)}; there are {', '.join(sorted(known))}",
            file=sys.stderr,
        )
        return EXIT_USAGE
    if unknown := sorted(set(options.parts) - set(PARTS)):
        print(f"requirements: there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return EXIT_USAGE
    measures = bool(set(options.parts) - {"predict"})
    if measures and not options.no_local and not machine.has_gpu():
        print("requirements: there is no NVIDIA GPU with a driver here (--no-local does without)", file=sys.stderr)
        return EXIT_USAGE
    try:
        results = kept.load(
            options.out, {"format": FORMAT_VERSION, "budget": BUDGET, "check_gbps": CHECK_GBPS, "cases": {}}
        )
    except ValueError as error:
        print(f"requirements: {error}", file=sys.stderr)
        return EXIT_USAGE
    # A signal from outside ends the server and the programs too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_FAILED))
    options.log_dir.mkdir(parents=True, exist_ok=True)
    options.recordings.mkdir(parents=True, exist_ok=True)
    chosen = [case for case in cases if not options.only or case.name in options.only or case.group in options.only]
    if set(options.parts) == {"predict"} and not options.only:
        chosen = [case for case in chosen if case.name in results["cases"]]
    with tempfile.TemporaryDirectory(prefix="requirements-") as scratch:
        outboard = [str(options.outboard)]
        carriers = ["shm", "tcp"] if "links" in options.parts else ["shm"]
        server = Server(outboard, carriers, options.device, options.log_dir / "server.log", SERVER_START_S)
        runner = Runner(
            [sys.executable], outboard, Path(scratch), options.log_dir, False, prepare_remote=server.ensure_running
        )
        constants = options.constants or Path(scratch) / "constants.json"
        group = group or Group("requirements", ())
        widest = network_name(max(options.rtts_us), max(options.gbps))
        setting = Setting(options, runner, server, group, options.recordings, constants, widest, 0)
        return _run(setting, chosen, results)


def _run(setting: Setting, chosen: list[Case], results: dict[str, Any]) -> int:
    options = setting.options
    until = time.monotonic() + options.budget_s
    ok = True
    try:
        measures, costs_only = bool(set(options.parts) - {"predict"}), set(options.parts) == {"cost"}
        if measures:
            setting.server.start()
        if not costs_only:
            if options.constants is None and measures:
                calibrate(setting)
            elif options.constants is None:
                setting.constants.write_text(json.dumps(results.get("constants")))
            results["constants"] = json.loads(setting.constants.read_text())
        about = setting.about = machine.describe(setting.runner.outboard) if measures else {}
        for number, case in enumerate(chosen):
            now = time.monotonic()
            if now >= until:
                print(f"no time was left for {', '.join(left.name for left in chosen[number:])}")
                ok = False
                break
            # The start does not count towards a program's share of the time.
            setting.deadline = max(now + (until - now) / (len(chosen) - number), now + START_S_MIN)
            try:
                before = results["cases"].get(case.name, {})
                entry: dict[str, Any] = {"status": "ok", **one(setting, case, before)}
            except PlayerSkip as reason:
                entry = {"status": "skip", "title": case.title, "error": str(reason)}
            except (PlayerError, StageError, ServerError, subprocess.TimeoutExpired) as error:
                entry = {"status": "error", "title": case.title, "error": str(error)}
                ok = False
            print(_line(entry), flush=True)
            if costs_only:
                # If the cost could not be measured, earlier results stay.
                results["cases"][case.name] = entry if entry["status"] == "ok" else before or entry
            else:
                results["cases"][case.name] = entry | ({"machine": about} if measures else {})
            kept.write(options.out, results)
    except ServerError as error:
        print(f"requirements: {error}", file=sys.stderr)
        ok = False
    finally:
        setting.server.stop()
    print(f"\nresults: {options.out}, recordings: {options.recordings}, logs: {options.log_dir}")
    return 0 if ok else EXIT_FAILED


def _line(entry: dict[str, Any]) -> str:
    if entry["status"] != "ok":
        return f"{entry['title']:44} {entry['status']}: {entry['error']}"
    if not entry.get("summary"):
        cost = f"   {entry['recording_overhead']:+.1%}" if "recording_overhead" in entry else ""
        return f"{entry['title']:44} recorded{cost}"
    text = f"{entry['title']:44} {entry['local_ms']:>9g} ms"
    for model, errors in entry["summary"].items():
        text += f"   {model} {errors['median']:.1%} (90 %: {errors['p90']:.1%})"
    text += f"   noise {entry['noise']['median']:.1%} ({entry['noise']['p90']:.1%})"
    return text + "".join(f"   {name} {check['overhead']:+.1%}" for name, check in entry["checks"].items())


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outboard", type=Path, required=True, help="the outboard program")
    parser.add_argument("--out", type=Path, required=True, help="the results (JSON); other programs in it are kept")
    parser.add_argument("--only", type=names, default=[], metavar="NAME,...", help="these programs or groups only")
    parser.add_argument(
        "--parts",
        type=names,
        default=list(PARTS),
        metavar="PART,...",
        help=f"of {', '.join(PARTS)}; predict alone needs no GPU",
    )
    parser.add_argument("--recordings", type=Path, default=ROOT / "build" / "recordings", help="where they are kept")
    parser.add_argument("--constants", type=Path, help="what `outboard calibrate` measured here")
    parser.add_argument(
        "--budget-s", type=float, default=BUDGET_S, help="for everything; shared out among the programs"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS_MAX, help="turns of each network at most")
    parser.add_argument("--turn-s", type=float, default=TURN_S, help="the length of a turn")
    parser.add_argument("--rtts-us", type=_numbers, default=list(RTTS_US), help="round-trip times of the grid")
    parser.add_argument("--gbps", type=_numbers, default=list(BANDWIDTHS_GBPS), help="bandwidths of the grid")
    parser.add_argument("--no-local", action="store_true", help="without the local GPU: against the bare server")
    parser.add_argument("--device", default="nvidia", help="passed to `outboard serve`")
    parser.add_argument("--log-dir", type=Path, default=ROOT / "build" / "requirements")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

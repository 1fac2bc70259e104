"""Asks a CUDA driver small questions with wrong, freed or missing arguments; prints `name answer` lines.

Runs unchanged on a GPU's own driver and behind Outboard: `driver_answers.py [GROUP]...`. Each group runs in a process
of its own. A question that kills its process is answered `crash`, and the group goes on in a new one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NoReturn

from driver_asking import CannotGoOn, NoContext, State, about, call
from driver_questions import CONTEXTS, STATELESS
from driver_questions_captured import CAPTURED
from driver_questions_crossed import CROSSED, NONE_CURRENT, Crossed, NoneCurrent
from driver_questions_edges import EDGES
from driver_questions_work import CAPTURES, GRAPHS, LAUNCHES, MEMORY, STREAMS

GROUPS: dict[str, tuple[Callable[[], object], dict[str, Callable[..., object]]]] = {
    "before cuInit": (object, STATELESS),
    "no context": (NoContext, STATELESS),
    "contexts": (State, CONTEXTS),
    "memory": (State, MEMORY),
    "streams": (State, STREAMS),
    "launches": (State, LAUNCHES),
    "graphs": (State, GRAPHS),
    "captures": (State, CAPTURES),
    "edges": (State, EDGES),
    "captured": (State, CAPTURED),
    "another context": (Crossed, CROSSED),
    "none current": (NoneCurrent, NONE_CURRENT),
}
GROUP_S_MAX = 20
# Exit status of a process without a context: the next process continues with the next question.
NEXT_PROCESS = 9
LOST_CONTEXT = ("ILLEGAL_ADDRESS", "LAUNCH_FAILED", "MISALIGNED_ADDRESS")
PROCESSES = int(os.environ.get("ANSWERS_PROCESSES", "4"))


def ask_group(group: str) -> list[tuple[str, str]]:
    """Returns the answers of one group, in order."""
    answers: list[tuple[str, str]] = []
    while True:
        command = [sys.executable, __file__, "--group", group, str(len(answers))]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=GROUP_S_MAX)
            output, status = done.stdout, done.returncode
        except subprocess.TimeoutExpired as late:
            output, status = (late.stdout or b"").decode(), -1
        pending = ""
        for line in output.splitlines():
            kind, _, rest = line.partition(" ")
            if kind == "?":
                pending = rest
            elif kind == "=":
                answers.append((pending, rest))
                pending = ""
        if status == 0:
            return answers
        if status == NEXT_PROCESS and not pending:
            continue
        if not pending:
            return [*answers, (f"{group}.end", f"exit {status}")]
        answers.append((pending, "crash" if status != -1 else "hangs"))


def answer_group(group: str, start: int, end: Callable[[int], NoReturn] = os._exit) -> NoReturn:
    """Asks a group's questions from number `start` on, in this process, and ends it."""
    prepare, questions = GROUPS[group]
    state = prepare()
    for name, question in list(questions.items())[start:]:
        print(f"? {group}.{name}", flush=True)
        try:
            print(f"= {run(question, state)}", flush=True)
        except CannotGoOn as why:
            print(f"= {why}", flush=True)
            end(NEXT_PROCESS)
        if state.__class__ is State and call("cuCtxSynchronize").endswith(LOST_CONTEXT):
            end(NEXT_PROCESS)
    sys.stdout.flush()
    # The driver's behaviour at such a process's end is not tested.
    end(0)


def run(question: Callable[..., object], state: object) -> str:
    answer = question(state)
    return " ".join(map(str, answer)) if isinstance(answer, tuple) else str(answer)


def main(groups: list[str]) -> None:
    chosen, found = groups or list(GROUPS), {}
    with ThreadPoolExecutor(PROCESSES) as pool:
        asked = {pool.submit(ask_group, group): group for group in chosen}
        for future in as_completed(asked):
            found[asked[future]] = dict(future.result())
            if path := os.environ.get("ANSWERS_JSON"):
                write(path, chosen, found)
    for group in chosen:
        for name, answer in found[group].items():
            print(name, answer)


def write(path: str, order: list[str], found: dict[str, dict[str, str]]) -> None:
    """Writes the answers found so far."""
    answers = {name: answer for group in order for name, answer in found.get(group, {}).items()}
    with open(path, "w") as file:
        json.dump({"about": about(), "answers": answers}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--group"]:
        answer_group(sys.argv[2], int(sys.argv[3]))
    else:
        main(sys.argv[1:])

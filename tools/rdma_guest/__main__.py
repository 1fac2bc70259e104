"""Runs scripts where there is RDMA: in a guest with software RoCE, on the files of this machine.

    python3 tools/rdma_guest prepare                   installs and fetches what a guest needs
    python3 tools/rdma_guest run SCRIPT [ARGUMENT...]  one guest, rxe0 and rxe1 on a veth pair; exits as the script did
    python3 tools/rdma_guest pair SERVER CLIENT        two guests with one rxe0 each, 10.213.78.1 and 10.213.78.2, and
                                                       a script in each; ends as CLIENT did, and SERVER with it

A SCRIPT is a file for bash; or, with -c, its text.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rdma_guest.guest import Command, GuestError, one_guest, two_guests
from rdma_guest.image import ImageError, Unavailable, prepare

LOOK_S = 0.05
UNAVAILABLE_STATUS = 3


def main() -> int:
    arguments = parser().parse_args()
    try:
        image = prepare()
        if arguments.verb == "run":
            script = script_of(arguments.script, arguments.c, arguments.argument)
            with one_guest(image, cpus=arguments.cpus or 2, memory_mib=arguments.memory_mib) as guest:
                return follow({"": guest.start(script)}, arguments.timeout_s)
        if arguments.verb == "pair":
            server, client = (script_of(text, arguments.c, []) for text in (arguments.server, arguments.client))
            with two_guests(image, cpus=arguments.cpus or 1, memory_mib=arguments.memory_mib) as guests:
                commands = {"server: ": guests[0].start(server), "client: ": guests[1].start(client)}
                return follow(commands, arguments.timeout_s)
    except Unavailable as error:
        print(f"guest: {error}", file=sys.stderr)
        return UNAVAILABLE_STATUS
    except (GuestError, ImageError, OSError) as error:
        print(f"guest: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 tools/rdma_guest", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("prepare")
    run = verbs.add_parser("run")
    pair = verbs.add_parser("pair")
    for verb in (run, pair):
        verb.add_argument("-c", action="store_true", help="scripts are given as text")
        verb.add_argument("--timeout-s", type=float, default=120)
        verb.add_argument("--cpus", type=int, help="of each guest")
        verb.add_argument("--memory-mib", type=int, default=2048)
    run.add_argument("script")
    run.add_argument("argument", nargs=argparse.REMAINDER)
    pair.add_argument("server")
    pair.add_argument("client")
    return parser


def script_of(script: str, is_text: bool, arguments: list[str]) -> str:
    if is_text:
        return f"set -- {shlex.join(arguments)}\n{script}"
    return shlex.join(["bash", str(Path(script).resolve(strict=True)), *arguments])


def follow(commands: dict[str, Command], timeout_s: float) -> int:
    """Prints the guests' output as it comes; returns the status of the last when it has ended."""
    deadline = time.monotonic() + timeout_s
    shown = dict.fromkeys(commands, 0)
    *_, last = commands.values()
    while True:
        status = last.status()
        for front, command in commands.items():
            shown[front] += show(front, command.output()[shown[front] :], status is not None)
        if status is not None:
            return status
        if time.monotonic() > deadline:
            raise GuestError(f"still running after {timeout_s:g} s")
        time.sleep(LOOK_S)


def show(front: str, text: str, is_end: bool) -> int:
    """Prints new output in whole lines, all of it at the end; returns how much was printed."""
    if not is_end:
        text = text[: text.rfind("\n") + 1]
    for line in text.splitlines():
        print(f"{front}{line}", flush=True)
    return len(text)


if __name__ == "__main__":
    sys.exit(main())

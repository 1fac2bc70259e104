"""Starts a command in which the system refuses to copy memory between processes, as some sandboxes do:
`without_process_vm.py COMMAND...`. The numbers are those of x86-64 and arm64."""

from __future__ import annotations

import errno
import os
import platform
import sys

from without_threads import ALLOW, JUMP_EQUAL, LOAD_WORD, NUMBER, REFUSE, RETURN, install

# process_vm_readv, process_vm_writev
READ, WRITE = {"x86_64": (310, 311), "aarch64": (270, 271)}[platform.machine()]
INSTRUCTIONS = (
    (LOAD_WORD, 0, 0, NUMBER),
    (JUMP_EQUAL, 1, 0, READ),
    (JUMP_EQUAL, 0, 1, WRITE),
    (RETURN, 0, 0, REFUSE | errno.EPERM),
    (RETURN, 0, 0, ALLOW),
)

if __name__ == "__main__":
    install(INSTRUCTIONS)
    os.execvp(sys.argv[1], sys.argv[1:])

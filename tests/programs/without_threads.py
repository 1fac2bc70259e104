"""Starts a command in which the system refuses every new thread: `without_threads.py COMMAND...`. New processes are
allowed. The numbers are those of x86-64 and arm64."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys

CLONE = {"x86_64": 56, "aarch64": 220}[platform.machine()]
CLONE3 = 435
CLONE_THREAD = 0x10000
# From linux/bpf_common.h, linux/seccomp.h and linux/prctl.h.
LOAD_WORD, AND, JUMP_EQUAL, RETURN = 0x20, 0x54, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
# Offsets in `struct seccomp_data`: the number of the call, and the low half of its first argument.
NUMBER, FIRST_ARGUMENT = 0, 16


class Instruction(ctypes.Structure):
    """`struct sock_filter`."""

    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("count", ctypes.c_uint16), ("instructions", ctypes.POINTER(Instruction)))


INSTRUCTIONS = (
    (LOAD_WORD, 0, 0, NUMBER),
    # The C library falls back to clone, whose flags a filter can read.
    (JUMP_EQUAL, 0, 1, CLONE3),
    (RETURN, 0, 0, REFUSE | errno.ENOSYS),
    (JUMP_EQUAL, 0, 4, CLONE),
    (LOAD_WORD, 0, 0, FIRST_ARGUMENT),
    (AND, 0, 0, CLONE_THREAD),
    (JUMP_EQUAL, 0, 1, CLONE_THREAD),
    (RETURN, 0, 0, REFUSE | errno.EAGAIN),
    (RETURN, 0, 0, ALLOW),
)


def install(filter: tuple[tuple[int, int, int, int], ...]) -> None:
    """Has the system apply a filter to this process's calls, and to those of what it executes."""
    instructions = (Instruction * len(filter))(*(Instruction(*each) for each in filter))
    program = Program(len(filter), instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    install(INSTRUCTIONS)
    os.execvp(sys.argv[1], sys.argv[1:])

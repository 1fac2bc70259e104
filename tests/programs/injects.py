"""Makes another process call the kernel: `injects.py PID`, then a line each on standard input, its number and
arguments; an argument that is no number is a text, given by its address. Prints each result.

The calls are the process's own, with its filters: what they return is what an attacker inside it gets. For x86-64."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import ClassVar

PTRACE_SINGLESTEP, PTRACE_GETREGS, PTRACE_SETREGS, PTRACE_ATTACH, PTRACE_DETACH = 9, 12, 13, 16, 17
SYSCALL = b"\x0f\x05"
# Bytes below the stack pointer that the process may use itself, and room for texts below these.
RED_ZONE_BYTES, TEXT_BYTES = 128, 1024

REGISTERS = """
    r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base ds es fs gs
"""

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


class Registers(ctypes.Structure):
    """`user_regs_struct`"""

    _fields_: ClassVar = [(name, ctypes.c_ulonglong) for name in REGISTERS.split()]


def ptrace(request: int, pid: int, data: object = None) -> None:
    if libc.ptrace(request, pid, None, data) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def call(pid: int, words: list[str]) -> int:
    """Has the process, which is stopped, make one call; leaves it as it was."""
    saved, registers = Registers(), Registers()
    ptrace(PTRACE_GETREGS, pid, ctypes.byref(saved))
    ptrace(PTRACE_GETREGS, pid, ctypes.byref(registers))
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        place = saved.rsp - RED_ZONE_BYTES
        values = []
        for word in words:
            try:
                values.append(int(word, 0))
            except ValueError:
                place -= TEXT_BYTES
                memory.seek(place)
                memory.write(word.encode() + b"\0")
                values.append(place)
        memory.seek(saved.rip)
        code = memory.read(len(SYSCALL))
        memory.seek(saved.rip)
        memory.write(SYSCALL)
        names = ["rax", "rdi", "rsi", "rdx", "r10", "r8", "r9"]
        for name, value in zip(names, [*values, *[0] * (len(names) - len(values))], strict=True):
            setattr(registers, name, value & (1 << 64) - 1)
        # No call is under way that would be restarted.
        registers.orig_rax = (1 << 64) - 1
        ptrace(PTRACE_SETREGS, pid, ctypes.byref(registers))
        ptrace(PTRACE_SINGLESTEP, pid)
        os.waitpid(pid, 0x40000000)
        ptrace(PTRACE_GETREGS, pid, ctypes.byref(registers))
        memory.seek(saved.rip)
        memory.write(code)
    ptrace(PTRACE_SETREGS, pid, ctypes.byref(saved))
    return ctypes.c_longlong(registers.rax).value


def main() -> None:
    pid = int(sys.argv[1])
    ptrace(PTRACE_ATTACH, pid)
    os.waitpid(pid, 0x40000000)
    for line in sys.stdin:
        print(call(pid, line.split()), flush=True)
    ptrace(PTRACE_DETACH, pid)


main()

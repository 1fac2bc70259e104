"""Allocates pinned memory where a sandbox refuses memfd_create from the middle of the program on."""

from __future__ import annotations

import ctypes
import struct
from ctypes import c_int, c_size_t, c_ulong, c_void_p

from cuda import call, must, primary_context

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2
MEMFD_CREATE, EPERM = 319, 1
LOAD_NUMBER, IS_EQUAL, RETURN = 0x20, 0x15, 0x06
ERRNO, ALLOW = 0x0005_0000, 0x7FFF_0000

primary_context()
memory = ctypes.c_uint64()
must("cuMemAlloc_v2", ctypes.byref(memory), c_size_t(64))
steps = [(LOAD_NUMBER, 0, 0, 0), (IS_EQUAL, 0, 1, MEMFD_CREATE), (RETURN, 0, 0, ERRNO | EPERM), (RETURN, 0, 0, ALLOW)]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None)
libc.prctl.argtypes = [c_int, c_ulong, c_void_p, c_ulong, c_ulong]
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.addressof(program), 0, 0) == 0
print(call("cuMemHostAlloc", ctypes.byref(c_void_p()), c_size_t(1 << 20), 0))

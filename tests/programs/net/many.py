"""Makes queues in pinned memory until one is refused: prints how many there were, and why."""

import ctypes

from outboard import OutboardError, net

import cuda

BYTES, QUEUES = 1 << 16, 1000

cuda.primary_context()
endpoints, pinned, count = [net.Endpoint(), net.Endpoint()], [], 0
try:
    for count in range(QUEUES):
        pinned.append(ctypes.c_void_p())
        cuda.must("cuMemHostAlloc", ctypes.byref(pinned[-1]), ctypes.c_size_t(BYTES), ctypes.c_uint32(0))
        memory = (ctypes.c_char * BYTES).from_address(pinned[-1].value)
        endpoints[count % 2].queue(memory=memory)
except OutboardError as error:
    print(count, error, sep="\n")

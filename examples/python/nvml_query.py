#!/usr/bin/env python3
"""What nvidia-ml-py says about the GPUs, and that the answers agree with the CUDA driver's.

Lines that start with "# " may differ from run to run; all others are the same wherever the GPU is.
"""

import ctypes
import sys
import uuid

import pynvml


def expect(holds: bool, what: str) -> bool:
    print(f"  {'ok' if holds else 'WRONG'}: {what}")
    return holds


def cuda_devices() -> list[tuple[str, uuid.UUID]]:
    """Name and UUID of every device, from libcuda."""
    cuda = ctypes.CDLL("libcuda.so.1")
    devices = []
    count, device = ctypes.c_int(), ctypes.c_int()
    name, identity = ctypes.create_string_buffer(128), ctypes.create_string_buffer(16)
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        raise OSError("libcuda finds no device")
    for ordinal in range(count.value):
        cuda.cuDeviceGet(ctypes.byref(device), ordinal)
        cuda.cuDeviceGetName(name, len(name), device)
        cuda.cuDeviceGetUuid_v2(identity, device)
        devices.append((name.value.decode(), uuid.UUID(bytes=identity.raw)))
    return devices


def main() -> int:
    print("nvml_query: NVML's view of the GPUs")
    try:
        pynvml.nvmlInit()
        devices = cuda_devices()
    except (pynvml.NVMLError, OSError) as error:
        print(f"no GPU: {error}", file=sys.stderr)
        return 1
    driver, nvml = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetNVMLVersion()
    print(f"# driver {driver}, NVML {nvml}, CUDA {pynvml.nvmlSystemGetCudaDriverVersion()}")
    results = [expect(pynvml.nvmlSystemGetCudaDriverVersion() >= 11000, "the CUDA version is known")]

    names, identities = [], []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        names.append(pynvml.nvmlDeviceGetName(handle))
        identities.append(uuid.UUID(pynvml.nvmlDeviceGetUUID(handle).removeprefix("GPU-")))
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        used = f"{memory.used >> 20} of {memory.total >> 20} MiB used"
        print(f"# {index}: {names[-1]}, compute capability {major}.{minor}, {used}")
        results.append(expect(memory.total > 0 and memory.used <= memory.total, f"device {index}: memory is plausible"))
    # A process may see fewer devices through CUDA (CUDA_VISIBLE_DEVICES), never others.
    results.append(expect(len(names) > 0, "there is a device"))
    results.append(
        expect(
            all(name in names and identity in identities for name, identity in devices),
            "CUDA's devices are among NVML's",
        )
    )
    try:
        pynvml.nvmlDeviceGetHandleByIndex(len(names))
        results.append(expect(False, "a device that does not exist is refused"))
    except pynvml.NVMLError as error:
        results.append(
            expect(error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT, "a device that does not exist is refused")
        )
    pynvml.nvmlShutdown()
    wrong = results.count(False)
    print(f"nvml_query: {'every result is right' if wrong == 0 else f'{wrong} results are WRONG'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Asks nvidia-ml-py everything; tests/common/mod.rs has what the answers must be."""

import ctypes
import inspect
import re
from collections.abc import Callable
from typing import Any

import pynvml as n


def refused(error: int, call: Callable[..., Any], *arguments: Any) -> None:
    try:
        answer = call(*arguments)
    except error:
        return
    raise AssertionError(f"{call.__name__}{arguments} answered {answer}")


def every_name_is_exported() -> None:
    names = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', inspect.getsource(n)))
    assert len(names) > 300, len(names)
    library = ctypes.CDLL("libnvidia-ml.so.1")
    missing = [name for name in names if not hasattr(library, name)]
    assert not missing, missing


def values(gpu: Any) -> None:
    assert n.nvmlSystemGetDriverVersion() == "580.95.05"
    assert n.nvmlSystemGetNVMLVersion() == "13.580.95.05"
    assert n.nvmlSystemGetCudaDriverVersion() == n.nvmlSystemGetCudaDriverVersion_v2() == 13000
    assert n.nvmlDeviceGetCount() == 2
    assert n.nvmlUnitGetCount() == 0
    assert n.nvmlDeviceGetName(gpu) == "NVIDIA H200"
    assert n.nvmlDeviceGetUUID(gpu) == "GPU-00112233-4455-6677-8899-aabbccddeeff"
    assert n.nvmlDeviceGetSerial(gpu) == "1650000000001"
    assert n.nvmlDeviceGetBoardPartNumber(gpu) == "699-2G520-0200-000"
    assert n.nvmlDeviceGetVbiosVersion(gpu) == "96.00.BC.00.01"
    gsp = n.nvmlDeviceGetGspFirmwareVersion(gpu)
    assert (gsp.decode() if isinstance(gsp, bytes) else gsp) == "580.95.05"
    assert n.nvmlDeviceGetBrand(gpu) == n.NVML_BRAND_NVIDIA
    assert n.nvmlDeviceGetArchitecture(gpu) == n.NVML_DEVICE_ARCH_HOPPER
    assert list(n.nvmlDeviceGetCudaComputeCapability(gpu)) == [9, 0]
    assert n.nvmlDeviceGetNumGpuCores(gpu) == 16896
    assert n.nvmlDeviceGetMinorNumber(gpu) == 3
    assert n.nvmlDeviceGetIndex(gpu) == 0
    assert n.nvmlDeviceGetModuleId(gpu) == 4
    pci = n.nvmlDeviceGetPciInfo(gpu)
    assert (pci.busId, pci.busIdLegacy) == ("00000000:5D:00.0", "0000:5D:00.0")
    assert (pci.bus, pci.pciDeviceId, pci.pciSubSystemId) == (0x5D, 0x233510DE, 0x18BE10DE)
    memory = n.nvmlDeviceGetMemoryInfo(gpu)
    assert (memory.total, memory.free, memory.used) == (150_000_000_000, 149_000_000_000, 1_000_000_000)
    memory = n.nvmlDeviceGetMemoryInfo(gpu, version=n.nvmlMemory_v2)
    assert (memory.total, memory.reserved, memory.used) == (150_000_000_000, 600_000_000, 400_000_000)
    bar1 = n.nvmlDeviceGetBAR1MemoryInfo(gpu)
    assert (bar1.bar1Total, bar1.bar1Free, bar1.bar1Used) == (1 << 38, (1 << 38) - 100, 100)
    assert n.nvmlDeviceGetMemoryBusWidth(gpu) == 6144
    rates = n.nvmlDeviceGetUtilizationRates(gpu)
    assert (rates.gpu, rates.memory) == (42, 17)
    assert list(n.nvmlDeviceGetEncoderUtilization(gpu)) == [1, 100_000]
    assert list(n.nvmlDeviceGetDecoderUtilization(gpu)) == [2, 200_000]
    assert n.nvmlDeviceGetTemperature(gpu, n.NVML_TEMPERATURE_GPU) == 33
    assert n.nvmlDeviceGetTemperatureV(gpu, n.NVML_TEMPERATURE_GPU) == 33
    assert n.nvmlDeviceGetTemperatureThreshold(gpu, n.NVML_TEMPERATURE_THRESHOLD_GPU_MAX) == 85
    assert n.nvmlDeviceGetFanSpeed(gpu) == n.nvmlDeviceGetFanSpeed_v2(gpu, 0) == 30
    refused(n.NVMLError_NotSupported, n.nvmlDeviceGetFanSpeed_v2, gpu, 1)
    assert n.nvmlDeviceGetNumFans(gpu) == 2
    assert n.nvmlDeviceGetPowerUsage(gpu) == 123_456
    assert n.nvmlDeviceGetPowerManagementLimit(gpu) == 700_000
    assert n.nvmlDeviceGetPowerManagementDefaultLimit(gpu) == 700_001
    assert n.nvmlDeviceGetEnforcedPowerLimit(gpu) == 700_002
    assert list(n.nvmlDeviceGetPowerManagementLimitConstraints(gpu)) == [200_000, 700_003]
    assert n.nvmlDeviceGetTotalEnergyConsumption(gpu) == 1 << 40
    assert n.nvmlDeviceGetPerformanceState(gpu) == n.nvmlDeviceGetPowerState(gpu) == 0
    assert n.nvmlDeviceGetCurrentClocksEventReasons(gpu) == 1
    assert n.nvmlDeviceGetCurrentClocksThrottleReasons(gpu) == 1
    assert [n.nvmlDeviceGetClockInfo(gpu, clock) for clock in range(4)] == [1980, 1981, 3201, 1650]
    assert [n.nvmlDeviceGetMaxClockInfo(gpu, clock) for clock in range(3)] == [2000, 2001, 3202]
    refused(n.NVMLError_NotSupported, n.nvmlDeviceGetMaxClockInfo, gpu, 3)
    assert n.nvmlDeviceGetApplicationsClock(gpu, n.NVML_CLOCK_MEM) == 3203
    assert n.nvmlDeviceGetClock(gpu, n.NVML_CLOCK_SM, n.NVML_CLOCK_ID_CURRENT) == 1981
    assert list(n.nvmlDeviceGetEccMode(gpu)) == [1, 0]
    volatile = n.NVML_VOLATILE_ECC
    assert n.nvmlDeviceGetTotalEccErrors(gpu, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile) == 2
    assert n.nvmlDeviceGetTotalEccErrors(gpu, n.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile) == 4
    assert n.nvmlDeviceGetTotalEccErrors(gpu, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, n.NVML_AGGREGATE_ECC) == 3
    assert list(n.nvmlDeviceGetMigMode(gpu)) == [0, 1]
    assert n.nvmlDeviceIsMigDeviceHandle(gpu).value == 0
    assert n.nvmlDeviceGetPersistenceMode(gpu) == 1
    assert n.nvmlDeviceGetPcieThroughput(gpu, n.NVML_PCIE_UTIL_TX_BYTES) == 111
    assert n.nvmlDeviceGetPcieThroughput(gpu, n.NVML_PCIE_UTIL_RX_BYTES) == 222
    assert n.nvmlDeviceGetPcieReplayCounter(gpu) == 7
    assert n.nvmlDeviceGetCurrPcieLinkGeneration(gpu) == n.nvmlDeviceGetMaxPcieLinkGeneration(gpu) == 5
    assert n.nvmlDeviceGetGpuMaxPcieLinkGeneration(gpu) == 6
    assert (n.nvmlDeviceGetCurrPcieLinkWidth(gpu), n.nvmlDeviceGetMaxPcieLinkWidth(gpu)) == (8, 16)


def processes(gpu: Any) -> None:
    for call in (
        n.nvmlDeviceGetComputeRunningProcesses,
        n.nvmlDeviceGetComputeRunningProcesses_v2,
        n.nvmlDeviceGetComputeRunningProcesses_v3,
    ):
        assert [(p.pid, p.usedGpuMemory) for p in call(gpu)] == [(4242, 1 << 30), (4243, None)]
    assert n.nvmlDeviceGetGraphicsRunningProcesses(gpu) == []
    assert n.nvmlSystemGetProcessName(4242) == "/usr/bin/python3"
    refused(n.NVMLError_NotFound, n.nvmlSystemGetProcessName, 4243)
    refused(n.NVMLError_NotFound, n.nvmlSystemGetProcessName, 1)


def fields(gpu: Any) -> None:
    power, energy, unknown, link = n.nvmlDeviceGetFieldValues(
        gpu, [n.NVML_FI_DEV_POWER_INSTANT, n.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, 250, (186, 3)]
    )
    assert (power.nvmlReturn, power.valueType, power.value.uiVal) == (0, n.NVML_VALUE_TYPE_UNSIGNED_INT, 123_456)
    assert (energy.nvmlReturn, energy.value.ullVal) == (0, 1 << 40)
    assert power.timestamp > 1_600_000_000_000_000
    assert unknown.nvmlReturn == link.nvmlReturn == n.NVML_ERROR_NOT_SUPPORTED


def lookups(gpu: Any) -> None:
    def index(handle: Any) -> Any:
        return n.nvmlDeviceGetIndex(handle)

    second = "GPU-ffeeddcc-bbaa-9988-7766-554433221100"
    assert index(n.nvmlDeviceGetHandleByUUID(second)) == 1
    uuid = bytes.fromhex(second.removeprefix("GPU-").replace("-", ""))
    assert index(n.nvmlDeviceGetHandleByUUIDV(uuid, n.NVML_UUID_TYPE_BINARY)) == 1
    assert index(n.nvmlDeviceGetHandleByUUIDV(second.encode(), n.NVML_UUID_TYPE_ASCII)) == 1
    assert index(n.nvmlDeviceGetHandleBySerial("1650000000001")) == 0
    for bus_id in ("00000000:9A:00.0", "0000:9a:00.0", "9a:00.0", "0:9a:0"):
        assert index(n.nvmlDeviceGetHandleByPciBusId(bus_id)) == 1, bus_id
    refused(n.NVMLError_NotFound, n.nvmlDeviceGetHandleByPciBusId, "0000:9a:00.1")
    refused(n.NVMLError_NotFound, n.nvmlDeviceGetHandleByUUID, "GPU-0")
    refused(n.NVMLError_InvalidArgument, n.nvmlDeviceGetHandleByIndex, 2)


def as_pytorch_asks() -> None:
    """torch.cuda.device_count and the UUIDs behind CUDA_VISIBLE_DEVICES, without nvidia-ml-py."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    assert library.nvmlInit() == 0
    count = ctypes.c_int(-1)
    assert (library.nvmlDeviceGetCount_v2(ctypes.byref(count)), count.value) == (0, 2)
    handle = ctypes.c_void_p()
    assert library.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(handle)) == 0
    uuid = ctypes.create_string_buffer(96)
    assert library.nvmlDeviceGetUUID(handle, uuid, 96) == 0
    assert uuid.raw.decode("ascii").strip("\0") == "GPU-ffeeddcc-bbaa-9988-7766-554433221100"
    assert library.nvmlShutdown() == 0


def nothing_crashes(gpu: Any) -> None:
    """Every function of nvidia-ml-py that takes a device and numbers: an answer, or an error that NVML has."""
    # By design they wait, sleep, or need a record that only the caller can make.
    asked = 0
    for name, call in sorted(vars(n).items()):
        if not re.match(r"nvmlDevice[A-Z]", name) or not inspect.isfunction(call):
            continue
        # A number would be the address of the record that it writes.
        if name.startswith(("nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetPciInfoExt")):
            continue
        needed = [p for p in inspect.signature(call).parameters.values() if p.default is p.empty]
        for number in (0, 1, 0xFFFF):
            try:
                call(gpu, *[number] * (len(needed) - 1))
            except (n.NVMLError, TypeError, AttributeError, ctypes.ArgumentError, OverflowError, ValueError) as error:
                assert not isinstance(error, n.NVMLError_FunctionNotFound), name
            asked += 1
    assert asked > 500, asked


def main() -> None:
    every_name_is_exported()
    refused(n.NVMLError_Uninitialized, n.nvmlDeviceGetCount)
    n.nvmlInit()
    gpu = n.nvmlDeviceGetHandleByIndex(0)
    values(gpu)
    processes(gpu)
    fields(gpu)
    lookups(gpu)
    as_pytorch_asks()
    nothing_crashes(gpu)
    nothing_crashes(n.nvmlDeviceGetHandleByIndex(1))
    n.nvmlShutdown()
    refused(n.NVMLError_Uninitialized, n.nvmlDeviceGetCount)
    print("everything checked")


main()

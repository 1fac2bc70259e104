"""NVIDIA's own tools: nvidia-smi and NVML from Python. They must name the same GPU as they do locally."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

from harness import Result, Settings, SkipWorkload, digest_bytes, require

__all__ = ["WORKLOADS", "first_result", "healthy"]

TOOL_S_MAX = 20


def first_result() -> None:
    """These workloads compute nothing."""


def healthy() -> bool:
    return True


def _tool(*command: str) -> str:
    if shutil.which(command[0]) is None:
        raise SkipWorkload(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_S_MAX, check=False)
    said = (done.stderr.strip() or done.stdout.strip())[-300:]
    require(done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}: {said}")
    return done.stdout


def nvidia_smi(settings: Settings) -> Result:
    output = _tool("nvidia-smi")
    versions = re.search(r"Driver Version:\s*([\d.]+)\s+CUDA Version:\s*([\d.]+)", output)
    require(versions is not None, f"nvidia-smi names no versions: {output[:300]}")
    assert versions is not None
    memory = re.findall(r"\d+MiB\s*/\s*(\d+)MiB", output)
    require(bool(memory), f"nvidia-smi names no memory: {output[:300]}")
    query = _tool("nvidia-smi", "--query-gpu=name,driver_version,compute_cap,memory.total", "--format=csv,noheader")
    return Result(
        facts={"driver": versions[1], "cuda": versions[2], "memory_mib": memory, "query": query.strip().splitlines()}
    )


def nvidia_smi_list(settings: Settings) -> Result:
    """The list names the GPU with its UUID, which is compared but not published."""
    output = _tool("nvidia-smi", "-L")
    lines = output.strip().splitlines()
    require(bool(lines) and all(re.match(r"GPU \d+: .+ \(UUID: GPU-", line) for line in lines), f"it says: {output}")
    return Result(digest=digest_bytes(output.encode()), facts={"gpus": len(lines)})


def nvml_queries(settings: Settings) -> Result:
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ModuleNotFoundError as error:
        raise SkipWorkload("nvidia-ml-py is not installed") from error
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    temperature = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
    utilization = _supported(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    power_mw = _supported(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    require(0 < memory.free <= memory.total, f"{memory.free} of {memory.total} bytes are free")
    require(0 < temperature < 120, f"the GPU is said to be at {temperature} degrees")
    require(utilization is None or 0 <= utilization.gpu <= 100, f"the GPU is said to be busy to {utilization}")
    require(power_mw is None or power_mw > 0, f"the GPU is said to take {power_mw} mW")
    uuid = nvml.nvmlDeviceGetUUID(handle)
    facts = {
        "count": nvml.nvmlDeviceGetCount(),
        "name": nvml.nvmlDeviceGetName(handle),
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "cuda": nvml.nvmlSystemGetCudaDriverVersion(),
        "memory_total": memory.total,
        "capability": list(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        "has_power": power_mw is not None,
        "has_utilization": utilization is not None,
        "same_by_uuid": nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(uuid)) == 0,
    }
    nvml.nvmlShutdown()
    return Result(digest=digest_bytes(str(uuid).encode()), facts=facts)


def _supported(nvml: Any, query: Callable[..., Any], handle: Any) -> Any:
    """The answer, or None on a GPU that does not know it (partitioned ones, for instance)."""
    try:
        return query(handle)
    except nvml.NVMLError_NotSupported:
        return None


WORKLOADS = {"nvidia_smi": nvidia_smi, "nvidia_smi_list": nvidia_smi_list, "nvml_queries": nvml_queries}

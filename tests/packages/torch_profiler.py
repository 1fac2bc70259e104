"""torch.profiler of a stock PyTorch on the software device, whose own execution is what it sees of the GPU."""

import collections
import os
import threading

import torch
from torch.profiler import ProfilerActivity, profile, schedule

torch.manual_seed(5)
ACTIVITIES = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
PINNED = torch.randn(1 << 15).pin_memory()


@torch.compile
def scaled(x, w):
    return torch.nn.functional.gelu(x * w).sum(dim=-1)


X, W = torch.randn(32, 200, device="cpu").cuda(), torch.randn(200).cuda()
scaled(X, W)


def gpu_events(profiler):
    """Returns the profile's records of the GPU, by name."""
    found = collections.defaultdict(list)
    for event in profiler.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            found[event.name()].append(event)
    return found


def calls(profiler):
    """The names of calls of the runtime and the driver, by their number."""
    events = profiler.profiler.kineto_results.events()
    return {e.correlation_id(): e.name() for e in events if e.name().startswith("cu") and e.correlation_id() > 0}


def kernels_and_copies():
    with profile(activities=ACTIVITIES) as profiler:
        for _ in range(3):
            scaled(X, W)
        there = PINNED.to("cuda", non_blocking=True)
        X.cpu()
        torch.cuda.synchronize()
    gpu, of = gpu_events(profiler), calls(profiler)
    [kernel] = [name for name in gpu if name.startswith("triton_")]
    assert len(gpu[kernel]) == 3, dict(gpu)
    assert len(gpu["Memcpy HtoD (Pinned -> Device)"]) == 1, dict(gpu)
    assert len(gpu["Memcpy DtoH (Device -> Pageable)"]) == 1, dict(gpu)
    for event in gpu[kernel]:
        assert event.duration_ns() > 0
        assert of[event.correlation_id()].startswith("cuLaunchKernel"), of
        # The operator that launched it.
        assert event.linked_correlation_id() > 0
    [copy] = gpu["Memcpy HtoD (Pinned -> Device)"]
    assert of[copy.correlation_id()] == "cudaMemcpyAsync", of
    starts = [event.start_ns() for event in gpu[kernel]]
    assert starts == sorted(starts)
    # Between the first and the last thing that the program did.
    host = [e for e in profiler.profiler.kineto_results.events() if e.device_type() == torch.autograd.DeviceType.CPU]
    begin, end = min(e.start_ns() for e in host), max(e.start_ns() + e.duration_ns() for e in host)
    assert all(begin <= e.start_ns() and e.start_ns() + e.duration_ns() <= end + 10**6 for e in gpu[kernel])
    assert there.shape == PINNED.shape


def schedules():
    counts = []
    with profile(
        activities=ACTIVITIES,
        schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=lambda p: counts.append(sum(n.startswith("triton_") * len(e) for n, e in gpu_events(p).items())),
    ) as profiler:
        for _ in range(9):
            scaled(X, W)
            torch.cuda.synchronize()
            profiler.step()
    assert counts == [2, 2], counts


def threads():
    def work():
        for _ in range(20):
            scaled(X, W)
        torch.cuda.current_stream().synchronize()

    with profile(activities=ACTIVITIES) as profiler:
        running = [threading.Thread(target=work) for _ in range(3)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        torch.cuda.synchronize()
    gpu, of = gpu_events(profiler), calls(profiler)
    [launched] = [events for name, events in gpu.items() if name.startswith("triton_")]
    assert len(launched) == 60
    # Each of a launch of its own.
    assert len({event.correlation_id() for event in launched}) == 60
    assert all(of[event.correlation_id()].startswith("cuLaunchKernel") for event in launched)


def twice():
    with profile(activities=ACTIVITIES):
        try:
            with profile(activities=ACTIVITIES):
                scaled(X, W)
        except RuntimeError:
            pass
    with profile(activities=ACTIVITIES) as profiler:
        scaled(X, W)
        torch.cuda.synchronize()
    assert any(name.startswith("triton_") for name in gpu_events(profiler))


def forked():
    with profile(activities=ACTIVITIES) as profiler:
        scaled(X, W)
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        scaled(X, W)
        torch.cuda.synchronize()
    assert sum(len(e) for n, e in gpu_events(profiler).items() if n.startswith("triton_")) == 2


if __name__ == "__main__":
    for check in (kernels_and_copies, schedules, threads, twice, forked):
        check()
        print(check.__name__, flush=True)

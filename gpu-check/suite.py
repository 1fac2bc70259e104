"""The suite of the check: groups of workloads, one process per group and mode.

Importing PyTorch takes 5 to 10 seconds, so related workloads share a process. Each is still reported by
itself: the process prints a line when a workload begins and one when it ends, and after a hang or a crash the
runner starts the group again with the workloads that are left.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
WORKLOADS_DIR = HERE / "workloads"
EXAMPLES_DIR = ROOT / "build" / "examples"
EXAMPLE_SCRIPTS_DIR = ROOT / "examples" / "python"

# Name of the group whose length is chosen.
SOAK = "soak"

LOSS_TOLERANCE = 1e-4
NUMBER_TOLERANCE_RELATIVE = 1e-4


@dataclass(frozen=True)
class Workload:
    """One workload: `function` of `module`, under `name` in the results."""

    name: str
    module: str
    function: str
    # Whether only the full run includes it.
    slow: bool = False
    # Why it is expected to fail today; empty if it must pass.
    known_failure: str = ""
    # The modes in which it is; empty for all.
    known_failure_modes: tuple[str, ...] = ()
    # Calls that may wait for the server in one steady-state iteration (see `--counts`); None if not
    # counted.
    synchronous_max: float | None = None
    number_tolerance_relative: float = NUMBER_TOLERANCE_RELATIVE

    def in_mode(self, mode: str) -> Workload:
        """Returns the workload as it is expected to go in a mode."""
        if self.known_failure_modes and mode not in self.known_failure_modes:
            return replace(self, known_failure="", known_failure_modes=())
        return self

    @property
    def target(self) -> str:
        return f"{self.name}={self.module}:{self.function}"


@dataclass(frozen=True)
class Group:
    """Workloads that share one process."""

    name: str
    workloads: tuple[Workload, ...]
    environment: dict[str, str] = field(default_factory=dict)
    # Exit status of a correct run.
    exit_code: int = 0
    # Folder of the modules; tests set their own.
    directory: Path = WORKLOADS_DIR
    # Time that a workload is asked to last beyond its work.
    lasts_s: float = 0.0


def _workloads(module: str, *functions: str, slow: bool = False) -> tuple[Workload, ...]:
    return tuple(Workload(function, module, function, slow=slow) for function in functions)


def _counted(module: str, **synchronous_max: float) -> tuple[Workload, ...]:
    return tuple(Workload(name, module, name, synchronous_max=n) for name, n in synchronous_max.items())


def _examples() -> tuple[Workload, ...]:
    """Returns the project's own CUDA programs that have been built."""
    if not EXAMPLES_DIR.is_dir():
        return ()
    programs = [p for p in EXAMPLES_DIR.iterdir() if p.is_file() and os.access(p, os.X_OK)]
    programs += EXAMPLE_SCRIPTS_DIR.glob("*.py")
    return tuple(Workload(f"example_{p.name}", "cuda_programs", str(p)) for p in sorted(programs))


def groups() -> tuple[Group, ...]:
    """The whole suite, in the order in which it runs.

    The bounds on synchronous calls are what the driver itself was asked by PyTorch 2.11 on an H200: each
    device-to-host copy and each synchronisation of a stream, and nothing else.
    """
    models = _counted(
        "torch_inference",
        resnet18_infer_b1=3,
        resnet18_infer_b64=3,
        resnet50_infer_b1=3,
        bert_infer_b1=3,
        bert_infer_b64=3,
        # 39 stream synchronisations and 35 copies for 16 tokens, twice that for 32.
        gpt2_gen32=148,
    ) + _counted("torch_training", resnet18_train_b64=4, bert_train_b16=4)
    suite = (
        Group("nvidia_tools", _workloads("nvidia_tools", "nvidia_smi", "nvidia_smi_list", "nvml_queries")),
        Group("examples", _examples()),
        Group(
            "models",
            models
            + _workloads("torch_half", "autocast_float16", "autocast_bfloat16", "model_float16", "model_bfloat16"),
        ),
        Group(
            "torch_features",
            _counted("micro", synchronize=1, launch=0, item=2, graph_replay=0)
            + _workloads("micro", "copies_pinned", "copies_pageable", "allocations")
            + _workloads("torch_streams", "threads", "events", "stream_dependencies", "pinned_async_d2h", "dataloader")
            + _workloads("torch_graphs", "cuda_graph", "graphed_callables")
            + _workloads("triton_kernels", "triton_vector_add", "triton_softmax")
            # Last, because it changes the allocator's state.
            + _workloads("torch_streams", "out_of_memory"),
        ),
        Group(
            "compile",
            _workloads("torch_compiled", "compiled_mlp") + _counted("torch_compiled", compiled_softmax=0),
        ),
        Group(
            "profiler",
            tuple(
                # Durations of kernels, which vary locally too.
                Workload(name, "torch_profiler", name, number_tolerance_relative=0.05)
                for name in ("profiler_resnet18", "profiler_bert", "profiler_graph", "profiler_copies", "profiler_many")
            ),
        ),
        Group(SOAK, _workloads("torch_soak", "soak") + _workloads("soak_calls", "soak_calls")),
        Group("device_assert", _workloads("faults", "device_assert")),
        Group("os_exit", _workloads("faults", "os_exit"), exit_code=7),
        Group(
            "jax",
            _workloads("jax_programs", "jax_matmul", "jax_grad", "jax_convolution", "jax_fft", "jax_linear_algebra"),
            environment={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        ),
        Group(
            # Takes three quarters of the GPU's memory at once.
            "jax_default",
            (
                Workload("jax_default_matmul", "jax_programs", "jax_matmul", slow=True),
                Workload("jax_default_grad", "jax_programs", "jax_grad", slow=True),
            ),
        ),
        Group(
            "cupy",
            _workloads(
                "cupy_programs", "cupy_elementwise", "cupy_reduction", "cupy_rawkernel", "cupy_matmul", "cupy_sort"
            ),
        ),
        Group(
            "fft",
            _workloads("torch_fft", "fft_single", "fft_double", "fft_half", "fft_many_plans", "fft_convolution"),
        ),
        Group(
            "libraries",
            _workloads(
                "torch_libraries",
                "cublaslt",
                "cusolver",
                "cusparse",
                "cusparselt",
                "cudnn_graphs",
                "cudnn_benchmark",
                "nvjpeg",
            ),
        ),
        Group(
            "cupy_libraries",
            _workloads(
                "cupy_libraries",
                "cupy_fft",
                "cupy_fft_callback",
                "curand",
                "cupy_cusolver",
                "cupy_cusparse",
                "nvrtc",
                "nvjitlink",
                "npp",
                "cutensor",
                "rmm",
            ),
        ),
        Group(
            "nccl",
            (
                *_workloads("nccl_programs", "nccl_collectives", "nccl_data_parallel", "nccl_close"),
                Workload(
                    "nccl_rank_killed",
                    "nccl_programs",
                    "nccl_rank_killed",
                    known_failure="two ranks on one GPU talk through host memory that kernels poll, which is a mirror",
                    known_failure_modes=("tcp",),
                ),
            ),
        ),
        Group("ipc", _workloads("ipc_programs", "ipc_tensors")),
        Group("random-calls", _workloads("random_calls", "random_calls")),
        Group(
            "two_gpus",
            _workloads(
                "two_gpus",
                "both_gpus",
                "pipeline",
                "peer_answers",
                "ranks_collectives",
                "ranks_graphs",
                "ranks_ddp",
                "ranks_fsdp",
                "ranks_tensor_parallel",
                "ranks_killed",
            ),
        ),
        Group("numba", _workloads("numba_programs", "numba_saxpy", "numba_shared_sum")),
    )
    return tuple(group for group in suite if group.workloads)


def soaking(suite: tuple[Group, ...], seconds: float, seed: int) -> tuple[Group, ...]:
    """The suite with a soak of at least `seconds`, its steps in the order of `seed`."""
    environment = {"OUTBOARD_SOAK_S": f"{seconds:g}", "OUTBOARD_SOAK_SEED": str(seed)}

    def longer(group: Group) -> Group:
        return replace(group, environment=group.environment | environment, lasts_s=seconds)

    return tuple(longer(group) if group.name == SOAK else group for group in suite)


def select(suite: tuple[Group, ...], only: list[str], quick: bool) -> tuple[Group, ...]:
    """The part of the suite asked for; names are those of groups or of workloads.

    Raises ValueError for a name that the suite does not have.
    """
    known = {group.name for group in suite} | {w.name for group in suite for w in group.workloads}
    unknown = sorted(set(only) - known)
    if unknown:
        raise ValueError(f"no group or workload is called {', '.join(unknown)} (--dry-run lists them)")

    def wanted(group: Group, workload: Workload) -> bool:
        if only:
            return group.name in only or workload.name in only
        return not (quick and workload.slow)

    chosen = (replace(group, workloads=tuple(w for w in group.workloads if wanted(group, w))) for group in suite)
    return tuple(group for group in chosen if group.workloads)

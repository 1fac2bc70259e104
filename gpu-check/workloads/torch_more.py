"""Steps that other people's programs make: factorisations, attention, streams that meet, look-ups, sparse products."""

from __future__ import annotations

from collections.abc import Callable

import torch

from harness import Settings, require
from torch_tools import DEVICE, first_result, healthy, random
from torch_tools import synchronize as synchronize_device

__all__ = ["STEPS", "WORKLOADS", "first_result", "healthy"]

WORKLOADS: dict[str, object] = {}
Step = Callable[[], object]
# Sizes that programs copy: from a page to what a batch of images takes.
PINNED_BYTES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]


def pinned_history(_: Settings) -> Step:
    """Pinned buffers of every size, copied up and down and kept, as a loader does before a model runs.

    One pass of a kernel over each, so that work has named all of them once.
    """
    hosts = [random(size // 4).pin_memory() for size in PINNED_BYTES]

    def step() -> None:
        for host in hosts:
            device = host.to(DEVICE, non_blocking=True)
            back = torch.empty_like(host, pin_memory=True)
            back.copy_(device + 1, non_blocking=True)
            synchronize_device()
            require(torch.equal(back, host + 1), "copies of pinned memory came back otherwise")

    _name_once(hosts)
    return step


def _name_once(hosts: list[torch.Tensor]) -> None:
    """A kernel whose arguments hold the addresses of pinned memory, beside what it works on."""
    from torch.cuda import _compile_kernel

    source = 'extern "C" __global__ void name_it(float* out, const float* pinned, int n)'
    source += " { int i = threadIdx.x; if (i < n) out[i] = pinned[i]; }"
    kernel = _compile_kernel(source, "name_it")
    out = torch.zeros(64, device=DEVICE)
    for host in hosts:
        # The pointer of pinned memory is the GPU's too.
        kernel(grid=(1, 1, 1), block=(64, 1, 1), args=[out, host, 64])
        synchronize_device()
        require(torch.equal(out.cpu(), host[:64]), "a kernel read other bytes from pinned memory")


def cholesky_svdvals(_: Settings) -> Step:
    square = random(256 * 256).reshape(256, 256).to(DEVICE)
    positive = square @ square.T + 256 * torch.eye(256, device=DEVICE)

    def step() -> None:
        torch.linalg.cholesky(positive)
        torch.linalg.svdvals(square)

    return step


def sdpa(_: Settings) -> Step:
    query, key, value = (random(2 * 8 * 512 * 64).reshape(2, 8, 512, 64).half().to(DEVICE) for _ in range(3))

    def step() -> None:
        torch.nn.functional.scaled_dot_product_attention(query, key, value)
        synchronize_device()

    return step


def two_streams(_: Settings) -> Step:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    left, right = torch.zeros(1 << 16, device=DEVICE), torch.zeros(1 << 16, device=DEVICE)
    synchronize_device()

    def step() -> None:
        with torch.cuda.stream(first):
            left.add_(1)
        second.wait_stream(first)
        with torch.cuda.stream(second):
            right.add_(left)
        first.wait_stream(second)
        first.synchronize()

    return step


def embedding_bag(_: Settings) -> Step:
    bag = torch.nn.EmbeddingBag(10000, 64, mode="sum").to(DEVICE)
    words = torch.arange(4096) % 10000
    offsets = torch.arange(0, 4096, 16)

    def step() -> float:
        return float(bag(words.to(DEVICE), offsets.to(DEVICE)).sum())

    return step


def sparse_product(_: Settings) -> Step:
    torch.manual_seed(3)
    rows, columns = torch.randint(0, 4096, (2, 65536))
    matrix = torch.sparse_coo_tensor(torch.stack([rows, columns]), torch.ones(65536), (4096, 4096)).coalesce()
    matrix = matrix.to(DEVICE).to_sparse_csr()
    dense = random(4096 * 64).reshape(4096, 64).to(DEVICE)

    def step() -> float:
        return float((matrix @ dense)[0, 0])

    return step


def graph_convolution(_: Settings) -> Step:
    """A layer of a graph network by scatter and gather, as in PyG."""
    torch.manual_seed(4)
    edges = torch.randint(0, 2708, (2, 10556)).to(DEVICE)
    features = random(2708 * 64).reshape(2708, 64).to(DEVICE)
    weight = random(64 * 64).reshape(64, 64).to(DEVICE)

    def step() -> float:
        degree = torch.zeros(2708, device=DEVICE).index_add_(0, edges[1], torch.ones(edges.shape[1], device=DEVICE))
        scale = degree.clamp(min=1).rsqrt()
        messages = (features @ weight)[edges[0]] * (scale[edges[0]] * scale[edges[1]])[:, None]
        out = torch.zeros_like(features).index_add_(0, edges[1], messages)
        return float(out.relu().sum())

    return step


STEPS: dict[str, Callable[[Settings], Step]] = {
    "pinned_history": pinned_history,
    "cholesky_svdvals": cholesky_svdvals,
    "sdpa": sdpa,
    "two_streams": two_streams,
    "embedding_bag": embedding_bag,
    "sparse_product": sparse_product,
    "graph_convolution": graph_convolution,
}

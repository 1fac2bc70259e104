"""Runs stock PyTorch on a device that runs PTX only: everything but its own kernels, which are machine code.

Memory, copies, streams, events and graphs are calls of the driver; torch.compile produces PTX by Triton.
"""

import torch

torch.manual_seed(5)


def memory_and_copies():
    x = torch.randn(1000, 37)
    gpu = x.cuda()
    assert torch.equal(gpu.cpu(), x) and torch.equal(gpu[10:20].cpu(), x[10:20])
    pinned = x.pin_memory()
    there = torch.empty_like(x, device="cuda")
    there.copy_(pinned, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(there.cpu(), x) and torch.equal(there.clone().cpu(), x)
    assert torch.cuda.memory_allocated() > 0 and torch.cuda.mem_get_info()[1] > 0


def streams_and_events():
    stream = torch.cuda.Stream()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    x = torch.arange(5000).pin_memory()
    with torch.cuda.stream(stream):
        start.record()
        there = x.to("cuda", non_blocking=True)
        end.record()
    torch.cuda.current_stream().wait_stream(stream)
    end.synchronize()
    assert start.elapsed_time(end) >= 0 and torch.equal(there.cpu(), x)


def own_kernels_are_refused():
    try:
        torch.ones(4, device="cuda")
        torch.cuda.synchronize()
    except RuntimeError as error:
        assert "no kernel image is available" in str(error), error
    else:
        raise AssertionError("a kernel that comes as machine code ran")


@torch.compile
def gelu_norm(x, w):
    y = torch.nn.functional.gelu(x * w)
    return (y - y.mean(dim=-1, keepdim=True)) / (y.var(dim=-1, keepdim=True) + 1e-5).sqrt()


def compiled():
    x, w = torch.randn(32, 200), torch.randn(200)
    expected = gelu_norm(x, w)
    torch.testing.assert_close(gelu_norm(x.cuda(), w.cuda()).cpu(), expected, rtol=1e-4, atol=1e-5)


@torch.compile
def loss(x, w):
    return torch.nn.functional.silu(x * w).pow(2).sum()


def compiled_backward():
    x, w = torch.randn(16, 50), torch.randn(50)
    grads = []
    for device in ("cpu", "cuda"):
        weight = w.clone().to(device).requires_grad_()
        # Ones of PyTorch's own would be a kernel of its own.
        loss(x.to(device), weight).backward(torch.ones(()).to(device))
        grads.append(weight.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    for check in (memory_and_copies, streams_and_events, own_kernels_are_refused, compiled, compiled_backward):
        check()
        print(check.__name__, flush=True)

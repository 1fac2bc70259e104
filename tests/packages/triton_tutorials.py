"""The kernels of Triton's tutorials at small sizes, as its own compiler makes them, against PyTorch on the CPU.

Tensors are made on the CPU: PyTorch's kernels are machine code in its wheel, which only a GPU runs.
"""

import torch
import triton
import triton.language as tl

torch.manual_seed(5)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    within = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=within) + tl.load(y_ptr + at, mask=within), mask=within)


def vector_add():
    x, y = torch.rand(98432), torch.rand(98432)
    gpu_x, gpu_y = x.cuda(), y.cuda()
    out = torch.empty_like(gpu_x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](gpu_x, gpu_y, out, x.numel(), BLOCK=1024)
    assert torch.equal(out.cpu(), x + y)


@triton.jit
def softmax_kernel(out_ptr, in_ptr, stride, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        at = tl.arange(0, BLOCK)
        values = tl.load(in_ptr + row * stride + at, mask=at < columns, other=-float("inf"))
        powers = tl.exp(values - tl.max(values, axis=0))
        tl.store(out_ptr + row * stride + at, powers / tl.sum(powers, axis=0), mask=at < columns)


def fused_softmax():
    x = torch.randn(67, 781)
    gpu = x.cuda()
    out = torch.empty_like(gpu)
    softmax_kernel[(16,)](out, gpu, gpu.stride(0), 67, 781, BLOCK=1024, STAGES=2, num_warps=8)
    torch.testing.assert_close(out.cpu(), torch.softmax(x, dim=1))


@triton.jit
def dropout_kernel(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    kept = tl.rand(seed, at) > p
    tl.store(out_ptr + at, tl.where(kept, x / (1 - p), 0.0), mask=at < n)


def seeded_dropout():
    x = torch.ones(10_000)
    outs = []
    for seed in (123, 123, 512):
        out = torch.empty(10_000, device="cuda")
        dropout_kernel[(10,)](x.cuda(), out, 10_000, 0.25, seed, BLOCK=1024)
        outs.append(out.cpu())
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])
    assert abs((outs[0] != 0).float().mean().item() - 0.75) < 0.02


@triton.jit
def norm_forward_kernel(x_ptr, y_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * stride + at, mask=at < n, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / n
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + at, mask=at < n, other=0.0).to(tl.float32)
        x = tl.where(at < n, x - mean, 0.0)
        total += x * x
    rstd = 1 / tl.sqrt(tl.sum(total, axis=0) / n + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        w = tl.load(w_ptr + at, mask=at < n)
        b = tl.load(b_ptr + at, mask=at < n)
        x = tl.load(x_ptr + row * stride + at, mask=at < n, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * stride + at, (x - mean) * rstd * w + b, mask=at < n)


@triton.jit
def norm_backward_kernel(
    dx_ptr,
    dy_ptr,
    dw_ptr,
    db_ptr,
    x_ptr,
    w_ptr,
    mean_ptr,
    rstd_ptr,
    lock_ptr,
    stride,
    n,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    within = at < n
    x = tl.load(x_ptr + row * stride + at, mask=within, other=0).to(tl.float32)
    dy = tl.load(dy_ptr + row * stride + at, mask=within, other=0).to(tl.float32)
    w = tl.load(w_ptr + at, mask=within).to(tl.float32)
    rstd = tl.load(rstd_ptr + row)
    normal = tl.where(within, (x - tl.load(mean_ptr + row)) * rstd, 0.0)
    scaled = tl.where(within, w * dy, 0.0)
    c1 = tl.sum(normal * scaled, axis=0) / n
    c2 = tl.sum(scaled, axis=0) / n
    tl.store(dx_ptr + row * stride + at, (scaled - (normal * c1 + c2)) * rstd, mask=within)
    # Rows of one group add up under a lock.
    group = row % GROUP
    lock = lock_ptr + group
    count = lock_ptr + GROUP + group
    dw, db = dy * normal, dy
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(count) == 0:
        tl.atomic_xchg(count, 1)
    else:
        dw += tl.load(dw_ptr + group * n + at, mask=within)
        db += tl.load(db_ptr + group * n + at, mask=within)
    tl.store(dw_ptr + group * n + at, dw, mask=within)
    tl.store(db_ptr + group * n + at, db, mask=within)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


def layer_norm():
    rows, n, group = 24, 300, 4
    x = torch.randn(rows, n, requires_grad=True)
    w, b = torch.rand(n, requires_grad=True), torch.rand(n, requires_grad=True)
    dy = torch.randn(rows, n)
    y = torch.nn.functional.layer_norm(x, (n,), w, b, 1e-5)
    y.backward(dy)

    gx, gw, gb, gdy = (tensor.detach().cuda() for tensor in (x, w, b, dy))
    out, dx = torch.empty_like(gx), torch.empty_like(gx)
    mean, rstd = torch.empty(rows, device="cuda"), torch.empty(rows, device="cuda")
    norm_forward_kernel[(rows,)](gx, out, gw, gb, mean, rstd, n, n, 1e-5, BLOCK=128)
    torch.testing.assert_close(out.cpu(), y.detach(), rtol=1e-4, atol=1e-5)

    dw, db = torch.empty(group, n, device="cuda"), torch.empty(group, n, device="cuda")
    locks = torch.zeros(2 * group, dtype=torch.int32).cuda()
    norm_backward_kernel[(rows,)](dx, gdy, dw, db, gx, gw, mean, rstd, locks, n, n, GROUP=group, BLOCK=512)
    torch.testing.assert_close(dx.cpu(), x.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dw.cpu().sum(dim=0), w.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(db.cpu().sum(dim=0), b.grad, rtol=1e-4, atol=1e-4)


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr
):
    # Programs of a group share columns of b: the order that reuses the second-level cache.
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = pid // (GROUP * columns) * GROUP
    size = min(rows - first, GROUP)
    row = first + pid % (GROUP * columns) % size
    column = pid % (GROUP * columns) // size
    at_m = (row * BM + tl.arange(0, BM)) % M
    at_n = (column * BN + tl.arange(0, BN)) % N
    at_k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        a = tl.load(a_ptr + at_m[:, None] * K + (k + at_k)[None, :], mask=(k + at_k)[None, :] < K, other=0.0)
        b = tl.load(b_ptr + (k + at_k)[:, None] * N + at_n[None, :], mask=(k + at_k)[:, None] < K, other=0.0)
        total = tl.dot(a, b, total)
    at_m = row * BM + tl.arange(0, BM)
    at_n = column * BN + tl.arange(0, BN)
    within = (at_m[:, None] < M) & (at_n[None, :] < N)
    tl.store(c_ptr + at_m[:, None] * N + at_n[None, :], total.to(c_ptr.dtype.element_ty), mask=within)


def matmul():
    m, n, k = 100, 72, 80
    for dtype, tolerance in ((torch.float16, 2e-2), (torch.bfloat16, 1e-1), (torch.float32, 1e-2)):
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
        c = torch.empty(m, n, dtype=dtype, device="cuda")
        grid = (triton.cdiv(m, 64) * triton.cdiv(n, 32),)
        matmul_kernel[grid](a.cuda(), b.cuda(), c, m, n, k, BM=64, BN=32, BK=32, GROUP=8, num_stages=3)
        expected = (a.double() @ b.double()).to(dtype)
        torch.testing.assert_close(c.cpu(), expected, rtol=tolerance, atol=tolerance)


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, scale, N, CAUSAL: tl.constexpr, HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    base = tl.program_id(1) * N * HEAD
    at_m = tl.program_id(0) * BM + tl.arange(0, BM)
    at_d = tl.arange(0, HEAD)
    q = tl.load(q_ptr + base + at_m[:, None] * HEAD + at_d[None, :])
    largest = tl.zeros([BM], dtype=tl.float32) - float("inf")
    weight = tl.zeros([BM], dtype=tl.float32)
    total = tl.zeros([BM, HEAD], dtype=tl.float32)
    end = (tl.program_id(0) + 1) * BM if CAUSAL else N
    for start in range(0, end, BN):
        at_n = start + tl.arange(0, BN)
        k = tl.load(k_ptr + base + at_n[None, :] * HEAD + at_d[:, None])
        scores = tl.dot(q, k) * scale
        if CAUSAL:
            scores = tl.where(at_m[:, None] >= at_n[None, :], scores, -float("inf"))
        now = tl.maximum(largest, tl.max(scores, 1))
        powers = tl.math.exp2(scores - now[:, None])
        shrink = tl.math.exp2(largest - now)
        weight = weight * shrink + tl.sum(powers, 1)
        v = tl.load(v_ptr + base + at_n[:, None] * HEAD + at_d[None, :])
        total = tl.dot(powers.to(v.dtype), v, total * shrink[:, None])
        largest = now
    out = total / weight[:, None]
    tl.store(out_ptr + base + at_m[:, None] * HEAD + at_d[None, :], out.to(out_ptr.dtype.element_ty))


def flash_attention():
    heads, n, head = 3, 128, 32
    q, k, v = (torch.randn(1, heads, n, head, dtype=torch.float16) for _ in range(3))
    for causal in (False, True):
        out = torch.empty(1, heads, n, head, dtype=torch.float16, device="cuda")
        scale = 1.4426950408889634 / head**0.5
        attention_kernel[(n // 64, heads)](
            q.cuda(), k.cuda(), v.cuda(), out, scale, n, CAUSAL=causal, HEAD=head, BM=64, BN=32
        )
        attention = torch.nn.functional.scaled_dot_product_attention
        expected = attention(q.float(), k.float(), v.float(), is_causal=causal)
        torch.testing.assert_close(out.cpu().float(), expected, rtol=1e-2, atol=1e-2)


if __name__ == "__main__":
    for check in (vector_add, fused_softmax, seeded_dropout, layer_norm, matmul, flash_attention):
        check()
        print(check.__name__, flush=True)

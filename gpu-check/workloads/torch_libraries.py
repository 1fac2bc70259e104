"""cuBLASLt, cuSOLVER, cuSPARSE, cuSPARSELt, cuDNN's graphs and nvJPEG, as PyTorch calls them."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness import Result, Settings, SkipWorkload, require
from torch_tools import DEVICE, digest, first_result, healthy, numbers, random, require_close

__all__ = ["WORKLOADS", "first_result", "healthy"]


def cublaslt(settings: Settings) -> Result:
    """Products with an epilogue (bias, GELU), and in eight bits where the GPU has them."""
    a, b, bias = random(256, 512, seed=0), random(512, 384, seed=1), random(384, seed=2)
    halves = [t.to(DEVICE, torch.bfloat16) for t in (bias, a, b)]
    plain = torch.addmm(*halves)
    gelu = torch._addmm_activation(*halves, use_gelu=True)
    expected = a.double() @ b.double() + bias.double()
    require_close(plain.cpu(), expected, 0.02, "bias")
    require_close(gelu.cpu(), torch.nn.functional.gelu(expected, approximate="tanh"), 0.02, "bias and GELU")
    outputs = [plain, gelu]
    if torch.cuda.get_device_capability() >= (8, 9):
        eight = torch.float8_e4m3fn
        one = torch.ones((), device=DEVICE)
        x, y = (a / 4).to(DEVICE).to(eight), (b.t().contiguous() / 4).to(DEVICE).to(eight)
        product = torch._scaled_mm(x, y.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        require_close(product.cpu(), x.cpu().double() @ y.cpu().double().t(), 0.02, "eight bits")
        outputs.append(product)
        integers = torch._int_mm((a * 20).to(torch.int8).to(DEVICE), (b * 20).to(torch.int8).to(DEVICE))
        require(
            torch.equal(integers.cpu(), (a * 20).to(torch.int8).int() @ (b * 20).to(torch.int8).int()),
            "a product of integers is wrong",
        )
        outputs.append(integers)
    return Result(digest=digest(*outputs), numbers=numbers(plain))


def cusolver(settings: Settings) -> Result:
    """Decompositions put together again, and equations solved; batched ones too."""
    matrix = random(200, 200, seed=3, dtype=torch.float64)
    symmetric = matrix @ matrix.t() + 200 * torch.eye(200, dtype=torch.float64)
    m, s = matrix.to(DEVICE), symmetric.to(DEVICE)
    outputs = []

    def same(what: str, product: torch.Tensor, expected: torch.Tensor) -> None:
        require_close(product.cpu(), expected, 1e-10, what)
        outputs.append(product)

    factor = torch.linalg.cholesky(s)
    same("Cholesky", factor @ factor.t(), symmetric)
    q, r = torch.linalg.qr(m)
    same("QR", q @ r, matrix)
    for driver in ("gesvd", "gesvdj", "gesvda"):
        u, values, v = torch.linalg.svd(m, driver=driver)
        same(f"SVD by {driver}", u @ torch.diag(values) @ v, matrix)
    values, vectors = torch.linalg.eigh(s)
    same("symmetric eigenvalues", vectors @ torch.diag(values) @ vectors.t(), symmetric)
    p, lower, upper = torch.linalg.lu(m)
    same("LU", p @ lower @ upper, matrix)
    same("solve", m @ torch.linalg.solve(m, s), symmetric)
    batch = random(64, 20, 20, seed=4, dtype=torch.float64)
    same(
        "a batch of inverses",
        torch.linalg.inv(batch.to(DEVICE)) @ batch.to(DEVICE),
        torch.eye(20, dtype=torch.float64).expand(64, 20, 20),
    )
    return Result(numbers={f"norm_{i}": float(t.norm()) for i, t in enumerate(outputs)})


def cusparse(settings: Settings) -> Result:
    """Sparse times dense, sparse times sparse, a triangular solve, conversions."""
    dense = random(300, 400, seed=5, dtype=torch.float64)
    dense[dense.abs() < 1.2] = 0
    right = random(400, 30, seed=6, dtype=torch.float64)
    csr = dense.to(DEVICE).to_sparse_csr()
    product = csr @ right.to(DEVICE)
    require_close(product.cpu(), dense @ right, 1e-12, "CSR times dense")
    vector = csr @ right[:, 0].to(DEVICE)
    require_close(vector.cpu(), dense @ right[:, 0], 1e-12, "CSR times a vector")
    coo = dense.to(DEVICE).to_sparse_coo()
    require_close(torch.sparse.mm(coo, right.to(DEVICE)).cpu(), dense @ right, 1e-12, "COO times dense")
    square = torch.sparse.mm(csr, dense.t().contiguous().to(DEVICE).to_sparse_csr())
    require_close(square.to_dense().cpu(), dense @ dense.t(), 1e-12, "CSR times CSR")
    triangle = torch.tril(random(100, 100, seed=7, dtype=torch.float64)) + 100 * torch.eye(100, dtype=torch.float64)
    solved = torch.triangular_solve(right[:100].to(DEVICE), triangle.to(DEVICE).to_sparse_csr(), upper=False)[0]
    require_close(triangle @ solved.cpu(), right[:100], 1e-12, "a triangular solve")
    return Result(numbers=numbers(product) | {"square": float(square.to_dense().norm())})


def cudnn_graphs(settings: Settings) -> Result:
    """cuDNN's own attention, forth and back, and convolutions of every rank with their gradients."""
    q, k, v = (random(2, 4, 128, 64, seed=s).to(DEVICE, torch.bfloat16).requires_grad_() for s in (8, 9, 10))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        output = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    output.float().square().sum().backward()
    with sdpa_kernel(SDPBackend.MATH):
        wide = [t.detach().double().cpu() for t in (q, k, v)]
        expected = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True)
    require_close(output.detach().cpu(), expected, 0.02, "attention")
    figures = {"attention": float(output.detach().float().norm()), "gradient": float(q.grad.float().norm())}
    for rank, convolve in enumerate((torch.conv1d, torch.conv2d, torch.conv3d), 1):
        x = random(4, 6, *[12] * rank, seed=rank, dtype=torch.float64)
        weight = random(8, 3, *[3] * rank, seed=rank + 3, dtype=torch.float64).requires_grad_()
        expected = convolve(x, weight, padding=1, groups=2)
        remote = weight.detach().to(DEVICE).requires_grad_()
        output = convolve(x.to(DEVICE), remote, padding=1, groups=2)
        require_close(output.detach().cpu(), expected.detach(), 1e-10, f"a convolution of rank {rank}")
        expected.square().sum().backward()
        output.square().sum().backward()
        require_close(remote.grad.cpu(), weight.grad, 1e-10, f"the gradient of rank {rank}")
        figures[f"conv{rank}d"] = float(output.detach().norm())
    lstm = torch.nn.LSTM(32, 48, num_layers=2, bidirectional=True)
    x = random(20, 8, 32, seed=11)
    expected = lstm(x)[0].detach()
    output = lstm.to(DEVICE)(x.to(DEVICE))[0].detach()
    require_close(output.cpu(), expected, 1e-3, "a recurrent network")
    return Result(numbers=figures)


def cudnn_benchmark(settings: Settings) -> Result:
    """cuDNN times what it has for a convolution, and takes the fastest."""
    x, weight = random(8, 16, 40, 40, seed=12), random(24, 16, 3, 3, seed=13)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
        output = torch.conv2d(x.to(DEVICE), weight.to(DEVICE), padding=1)
    require_close(output.cpu(), torch.conv2d(x.double(), weight.double(), padding=1), 1e-4, "the convolution")
    return Result(numbers={"norm": float(output.norm())})


def nvjpeg(settings: Settings) -> Result:
    """A picture through nvJPEG's encoder and decoder."""
    try:
        from torchvision.io import decode_jpeg, encode_jpeg
    except ImportError as error:
        raise SkipWorkload("torchvision is not installed") from error
    ramp = torch.arange(256, dtype=torch.uint8)
    picture = torch.stack([ramp.repeat(128, 1), ramp.flip(0).repeat(128, 1), torch.full((128, 256), 90)]).byte()
    try:
        packed = encode_jpeg(picture.to(DEVICE), quality=95)
        unpacked = decode_jpeg(packed.cpu(), device=DEVICE)
    except RuntimeError as error:
        if "not compiled with" in str(error):
            raise SkipWorkload("torchvision was built without nvJPEG") from error
        raise
    require(unpacked.shape == picture.shape, f"a picture of {tuple(unpacked.shape)}")
    error = (unpacked.cpu().int() - picture.int()).abs().max().item()
    require(error <= 16, f"a pixel is off by {error}")
    return Result(digest=digest(packed, unpacked))


def cusparselt(settings: Settings) -> Result:
    """A product with a matrix of which two in four elements are zero, compressed by cuSPARSELt."""
    if not torch.backends.cusparselt.is_available():
        raise SkipWorkload("cuSPARSELt is not installed")
    dense = random(256, 256, seed=20).to(DEVICE, torch.float16)
    mask = torch.tensor([1, 0, 1, 0], device=DEVICE, dtype=torch.bool).tile(256, 64)
    pruned, other = dense * mask, random(256, 128, seed=21).to(DEVICE, torch.float16)
    compressed = torch._cslt_compress(pruned)
    product = torch._cslt_sparse_mm(compressed, other)
    require_close(product.cpu(), pruned.cpu().double() @ other.cpu().double(), 0.02, "cuSPARSELt")
    best = torch._cslt_sparse_mm_search(compressed, other)
    require(0 <= best < 1000, f"algorithm {best} is found to be the fastest")
    return Result(digest=digest(product), numbers=numbers(product))


WORKLOADS = {
    "cublaslt": cublaslt,
    "cusolver": cusolver,
    "cusparse": cusparse,
    "cusparselt": cusparselt,
    "cudnn_graphs": cudnn_graphs,
    "cudnn_benchmark": cudnn_benchmark,
    "nvjpeg": nvjpeg,
}

"""cuFFT through PyTorch: every kind of transform, each beside NumPy's or PyTorch's own on the processor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from harness import Result, Settings, median_ms, require
from torch_tools import DEVICE, digest, first_result, healthy, numbers, random, require_close, synchronize

__all__ = ["WORKLOADS", "first_result", "healthy"]

# Relative to the largest value of the expected output.
TOLERANCE = {torch.float16: 5e-3, torch.float32: 1e-5, torch.float64: 1e-12}
COMPLEX = {torch.float16: torch.complex32, torch.float32: torch.complex64, torch.float64: torch.complex128}

Transform = Callable[[torch.Tensor], torch.Tensor]


def _complex(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    parts = random(*shape, seed=seed, dtype=dtype), random(*shape, seed=seed + 1, dtype=dtype)
    return torch.complex(*parts)


def _check(name: str, transform: Transform, x: torch.Tensor, real: torch.dtype) -> torch.Tensor:
    """The transform on the GPU, held to the same in double precision on the processor."""
    wide = x.to(torch.complex128 if x.is_complex() else torch.float64)
    expected = transform(wide)
    output = transform(x.to(DEVICE)).cpu()
    widest = output.to(torch.complex128 if output.is_complex() else torch.float64)
    require_close(
        torch.view_as_real(widest) if widest.is_complex() else widest,
        torch.view_as_real(expected) if expected.is_complex() else expected,
        TOLERANCE[real],
        name,
    )
    return torch.view_as_real(output) if output.is_complex() else output


def fft(real: torch.dtype, settings: Settings) -> Result:
    """One, two and three dimensions, batched, odd sizes, complex and real, forth and back."""
    cases: dict[str, tuple[Transform, torch.Tensor]] = {
        "c2c_1d": (torch.fft.fft, _complex(4096, seed=0, dtype=real)),
        "c2c_1d_batched": (torch.fft.fft, _complex(37, 1000, seed=1, dtype=real)),
        "c2c_1d_prime": (torch.fft.fft, _complex(10007, seed=2, dtype=real)),
        "c2c_1d_long": (torch.fft.fft, _complex(1 << 20, seed=3, dtype=real)),
        "c2c_inverse": (torch.fft.ifft, _complex(8, 360, seed=4, dtype=real)),
        "c2c_2d": (torch.fft.fft2, _complex(3, 96, 200, seed=5, dtype=real)),
        "c2c_3d": (torch.fft.fftn, _complex(32, 48, 20, seed=6, dtype=real)),
        "c2c_strided": (partial(torch.fft.fft, dim=0), _complex(128, 70, seed=7, dtype=real)),
        "r2c_1d": (torch.fft.rfft, random(16, 1024, seed=8, dtype=real)),
        "r2c_2d": (torch.fft.rfft2, random(5, 64, 100, seed=9, dtype=real)),
        "r2c_3d": (torch.fft.rfftn, random(16, 24, 32, seed=10, dtype=real)),
        "c2r_1d": (partial(torch.fft.irfft, n=1000), torch.fft.rfft(random(16, 1000, seed=11, dtype=real))),
        "c2r_2d": (partial(torch.fft.irfft2, s=(64, 100)), torch.fft.rfft2(random(64, 100, seed=12, dtype=real))),
    }
    outputs = [_check(name, transform, x, real) for name, (transform, x) in cases.items()]
    return Result(digest=digest(*outputs), numbers=numbers(outputs[0]))


def fft_half(settings: Settings) -> Result:
    """Half precision, which cuFFT has for powers of two."""
    half = torch.float16
    signal = random(16, 1024, seed=20)
    spectrum = torch.fft.rfft(signal.to(DEVICE, half))
    back = torch.fft.irfft(spectrum, n=1024)
    expected = torch.fft.rfft(signal.double())
    require_close(
        torch.view_as_real(spectrum.cpu().to(torch.complex128)), torch.view_as_real(expected), TOLERANCE[half], "r2c"
    )
    require_close(back.cpu(), signal, TOLERANCE[half], "forth and back")
    square = torch.fft.fft2(_complex(64, 64, seed=21, dtype=torch.float32).to(DEVICE, torch.complex32))
    return Result(digest=digest(torch.view_as_real(spectrum), back, torch.view_as_real(square)), numbers=numbers(back))


def fft_many_plans(settings: Settings) -> Result:
    """More plans than PyTorch keeps, and plans on several streams."""
    outputs = []
    for n in range(100, 140):
        x = random(4, n, seed=n)
        with torch.cuda.stream(torch.cuda.Stream()):
            spectrum = torch.fft.rfft(x.to(DEVICE))
            synchronize()
        require_close(torch.view_as_real(spectrum.cpu()), torch.view_as_real(torch.fft.rfft(x)), 1e-5, f"n = {n}")
        outputs.append(torch.view_as_real(spectrum))
    torch.backends.cuda.cufft_plan_cache.clear()
    return Result(digest=digest(*outputs))


def fft_convolution(settings: Settings) -> Result:
    """A long convolution, by transform, product, inverse; and its gradient."""
    signal = random(8, 1 << 16, seed=30).to(DEVICE).requires_grad_()
    kernel = random(1 << 16, seed=31).to(DEVICE)

    def convolve() -> torch.Tensor:
        return torch.fft.irfft(torch.fft.rfft(signal) * torch.fft.rfft(kernel), n=signal.shape[-1])

    output = convolve()
    output.square().sum().backward()
    require(signal.grad is not None and bool(torch.isfinite(signal.grad).all()), "no finite gradient")

    def step() -> None:
        with torch.no_grad():
            convolve()
        synchronize()

    ms = median_ms(step, settings.iterations(full=50, quick=10))
    return Result(digest=digest(output), numbers=numbers(output), timings_ms={"convolution": ms})


WORKLOADS = {
    "fft_single": partial(fft, torch.float32),
    "fft_double": partial(fft, torch.float64),
    "fft_half": fft_half,
    "fft_many_plans": fft_many_plans,
    "fft_convolution": fft_convolution,
}

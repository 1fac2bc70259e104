"""JAX: a matrix product, the gradient of a small network, convolutions, transforms.

XLA picks kernels by timing them, so bits may differ from run to run; values are compared instead.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from harness import Result, Settings, median_ms, require

__all__ = ["WORKLOADS", "first_result", "healthy"]


def first_result() -> None:
    require(healthy(), "1 + 1 is not 2")


def healthy() -> bool:
    return float(jnp.ones(2).sum()) == 2.0


def _require_gpu() -> None:
    # JAX falls back to the processor without an error.
    require(jax.default_backend() == "gpu", f"JAX runs on {jax.default_backend()}")


def _result(arrays: list[jax.Array], timings_ms: dict[str, float]) -> Result:
    host = [np.ascontiguousarray(array) for array in arrays]
    require(all(np.isfinite(a).all() for a in host), "the output is not finite")
    numbers = {f"norm_{i}": float(np.linalg.norm(a.astype(np.float64))) for i, a in enumerate(host)}
    return Result(numbers=numbers, timings_ms=timings_ms)


def jax_matmul(settings: Settings) -> Result:
    _require_gpu()
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((1024, 1024), dtype=np.float32) for _ in range(2))
    multiply = jax.jit(lambda x, y: jnp.matmul(x, y, precision="highest"))
    x, y = jnp.asarray(a), jnp.asarray(b)
    product = multiply(x, y)
    error = np.abs(np.asarray(product, dtype=np.float64) - a.astype(np.float64) @ b).max()
    require(error < 1e-2, f"the product is off by {error}")
    ms = median_ms(lambda: multiply(x, y).block_until_ready(), settings.iterations(full=50, quick=10))
    return _result([product], {"product": ms})


def jax_grad(settings: Settings) -> Result:
    """Ten steps of gradient descent; the loss must fall."""
    _require_gpu()
    keys = jax.random.split(jax.random.key(0), 4)
    parameters = [jax.random.normal(keys[0], (64, 128)) * 0.1, jax.random.normal(keys[1], (128, 8)) * 0.1]
    x, target = jax.random.normal(keys[2], (256, 64)), jax.random.normal(keys[3], (256, 8))

    def loss_of(parameters: list[jax.Array]) -> jax.Array:
        hidden = jnp.tanh(jnp.matmul(x, parameters[0], precision="highest"))
        return jnp.mean((jnp.matmul(hidden, parameters[1], precision="highest") - target) ** 2)

    step = jax.jit(jax.value_and_grad(loss_of))
    losses = []
    for _ in range(10):
        loss, gradients = step(parameters)
        parameters = [p - 0.5 * g for p, g in zip(parameters, gradients, strict=True)]
        losses.append(float(loss))
    require(losses[-1] < losses[0], f"the loss did not fall: {losses}")
    result = _result(parameters, {})
    result.losses = losses
    return result


def jax_convolution(settings: Settings) -> Result:
    """A convolution by cuDNN, with its gradients."""
    _require_gpu()
    keys = jax.random.split(jax.random.key(1), 2)
    x, weight = jax.random.normal(keys[0], (8, 32, 32, 16)), jax.random.normal(keys[1], (3, 3, 16, 32))

    def convolve(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), precision="highest"
        )

    output = jax.jit(convolve)(x, weight)
    host = np.pad(np.asarray(x, dtype=np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    filters = np.asarray(weight, dtype=np.float64)
    expected = sum(host[:, i : i + 32, j : j + 32] @ filters[i, j] for i in range(3) for j in range(3))
    error = np.abs(np.asarray(output) - expected).max() / np.abs(expected).max()
    require(error < 1e-4, f"the convolution is off by {error:.3g} of the largest value")
    gradients = jax.jit(jax.grad(lambda x, w: (convolve(x, w) ** 2).sum(), argnums=(0, 1)))(x, weight)
    return _result([output, *gradients], {})


def jax_fft(settings: Settings) -> Result:
    _require_gpu()
    x = np.random.default_rng(2).standard_normal((6, 40, 64), dtype=np.float32)
    outputs = [jax.jit(jnp.fft.rfftn)(x), jax.jit(jnp.fft.fft2)(x)]
    for output, expected in zip(outputs, (np.fft.rfftn(x), np.fft.fft2(x)), strict=True):
        error = np.abs(np.asarray(output) - expected).max() / np.abs(expected).max()
        require(error < 1e-5, f"a transform is off by {error:.3g} of the largest value")
    return _result([jnp.abs(output) for output in outputs], {})


def jax_linear_algebra(settings: Settings) -> Result:
    """Decompositions, by cuSOLVER."""
    _require_gpu()
    matrix = np.random.default_rng(3).standard_normal((64, 64), dtype=np.float32)
    u, values, v = jnp.linalg.svd(matrix)
    q, r = jnp.linalg.qr(matrix)
    products = [(u * values) @ v, q @ r]
    for product in products:
        error = np.abs(np.asarray(product) - matrix).max()
        require(error < 1e-2, f"a product of factors is off by {error:.3g}")
    return _result([values], {})


WORKLOADS = {
    "jax_matmul": jax_matmul,
    "jax_grad": jax_grad,
    "jax_convolution": jax_convolution,
    "jax_fft": jax_fft,
    "jax_linear_algebra": jax_linear_algebra,
}

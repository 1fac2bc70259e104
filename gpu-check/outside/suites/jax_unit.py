"""JAX's unit tests of its operators and transformations, from a checkout at the installed version."""

from __future__ import annotations

import os
from pathlib import Path

from outside.pytests import Pytests

FILES = (
    "lax_test",
    "lax_numpy_test",
    "lax_control_flow_test",
    "lax_scipy_test",
    "fft_test",
    "linalg_test",
    "nn_test",
    "random_lax_test",
    "array_test",
    "python_callback_test",
    "pallas/pallas_test",
)


def open_suite(sources: Path) -> Pytests:
    # Several processes share the GPU, and JAX would take most of its memory at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("JAX_NUM_GENERATED_CASES", "1")
    return Pytests(sources / "jax", [f"tests/{name}.py" for name in FILES])

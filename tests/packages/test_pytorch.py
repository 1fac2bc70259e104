"""PyTorch and Triton as they come from the index, on the software device. The longest of these tests: another worker
has the other packages' meanwhile."""

from __future__ import annotations

import pytest
from test_packages import run_program

from harness import Server


@pytest.mark.parametrize("program", ["triton_tutorials", "torch_stock", "torch_profiler"])
def test_package(server: Server, link: str, program: str, caches: dict[str, str]) -> None:
    run_program(server, link, program, "torch", caches)

"""Marks four steps, each with one call, and an iteration of another kind."""

from __future__ import annotations

import outboard

from cuda import must

for _ in range(4):
    with outboard.mark("step"):
        must("cuInit", 0)
outboard.begin("Iteration of another kind")
outboard.end("Iteration of another kind")

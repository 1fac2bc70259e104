"""A program that makes no call, until its lease is over; the pool is found by what `outboard run --pool` says."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
from outboard.pool import Pool

pool = Pool()
for change in pool.changes(pool.own_lease()):
    if change.what == "over":
        break

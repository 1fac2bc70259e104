"""Prints what changes in its own lease of a pool's GPUs, until the lease is over or its input ends."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "python"))

from outboard.pool import Pool

pool = Pool()
lease = pool.own_lease()
seen = pool.lease(lease)
print(",".join(seen["gpus"]), flush=True)
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
for change in pool.changes(lease, since=seen, stop=stop):
    print(change.what, change.gpu or "-", change.reason or "-", flush=True)

#!/usr/bin/env python3
"""Copies straight between a program's memory and an NVIDIA GPU's, by RDMA adapters: each byte looked at, and how fast.

    python3 gpu-check/rdma_memory.py --server-device mlx5_0 --client-device mlx5_1

Needs one machine with an NVIDIA GPU and two RDMA ports that reach each other (a cable or a switch). Each way that
there is to the GPU's memory (dma-buf, nvidia-peermem) is tried by itself, and then none, to be compared with. Says
NOT RUN, and ends with 77, where the machine lacks something; with 1 where bytes are wrong, or a way that the driver and
the modules offer was not taken.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine

ROOT = Path(__file__).resolve().parent.parent
COPIES = ROOT / "tests" / "programs" / "gpu_copies.py"
CASES = ["lengths", "order", "held", "reuse", "threads"]
INFINIBAND = Path("/sys/class/infiniband")
PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
LISTENING_S_MAX = 60
PROGRAM_S_MAX = 600
EXIT_FAILED = 1
EXIT_NOT_RUN = 77


def lacking(devices: list[str]) -> str | None:
    """Returns what this machine lacks, if anything."""
    if not machine.has_gpu():
        return "there is no NVIDIA GPU with a driver here"
    there = {path.name for path in INFINIBAND.iterdir()} if INFINIBAND.is_dir() else set()
    missing = [device for device in devices if device not in there]
    if missing:
        return f"there is no RDMA device {', '.join(missing)} here; there is {', '.join(sorted(there)) or 'none'}"
    return None


def listening(log: Path, server: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + LISTENING_S_MAX
    while time.monotonic() < deadline and server.poll() is None:
        if found := re.search(r"listening on (rdma://[^?\s]+)", log.read_text()):
            return found[1]
        time.sleep(0.1)
    raise SystemExit(f"the server does not listen:\n{log.read_text()}")


def tried(options: argparse.Namespace, way: str, scratch: Path) -> tuple[dict[str, int], str, str]:
    """Returns the program's counters, its speed, and the server's log."""
    log, stats = scratch / f"{way}.log", scratch / f"{way}.json"
    listen = f"rdma://{options.address}:0?device={options.server_device}&gpu_memory={way}"
    serve = [options.outboard, "serve", "--device", "nvidia", "--spare", "0", "--insecure", "--listen", listen]
    with log.open("wb") as file:
        server = subprocess.Popen(serve, stdout=file, stderr=subprocess.STDOUT)
    try:
        url = f"{listening(log, server)}?device={options.client_device}"
        run = [options.outboard, "run", "--gpu", url, "--", sys.executable, COPIES]
        environment = {**os.environ, "OUTBOARD_STATS": str(stats)}
        said = ""
        counts: dict[str, int] = {}
        for cases in (CASES, ["speed"]):
            done = subprocess.run(
                [*run, *cases], env=environment, capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False
            )
            if done.returncode != 0 or not done.stdout.endswith("right\n"):
                raise SystemExit(f"{way}: FAILED\n{done.stdout}{done.stderr}\n{log.read_text()}")
            if cases == CASES:
                counts = json.loads(stats.read_text())["rdma"]
            said = done.stdout.removesuffix("right\n").replace("\n", "  ")
    finally:
        server.terminate()
        server.wait()
    return counts, said, log.read_text()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server-device", default="mlx5_0")
    parser.add_argument("--client-device", default="mlx5_1")
    parser.add_argument("--address", default="127.0.0.1", help="of the server, for the tcp connection beside")
    parser.add_argument("--outboard", default=str(ROOT / "target" / "release" / "outboard"))
    options = parser.parse_args()
    if why := lacking([options.server_device, options.client_device]):
        print(f"NOT RUN: copies between RDMA adapters and an NVIDIA GPU's memory: {why}", file=sys.stderr)
        return EXIT_NOT_RUN
    has_module = any((Path("/sys/module") / name).exists() for name in PEER_MODULES)
    failed, ran = False, 0
    with tempfile.TemporaryDirectory(prefix="rdma-memory-") as scratch:
        for way, is_offered in [("dmabuf", True), ("peermem", has_module), ("off", True)]:
            if not is_offered:
                print(f"NOT RUN: {way}: its kernel module is not loaded", file=sys.stderr)
                continue
            counts, speed, said = tried(options, way, Path(scratch))
            moved = counts["to_gpu_bytes"], counts["from_gpu_bytes"]
            is_refused = "copies pass through pinned memory" in said
            if way != "off" and is_refused:
                # As on a driver without dma-bufs, which says so itself.
                print(f"NOT RUN: {way}: {said}", file=sys.stderr)
            elif (way == "off") != (moved == (0, 0)):
                print(f"FAILED: {way}: {moved} bytes went straight\n{said}", file=sys.stderr)
                failed = True
            else:
                ran += way != "off"
            print(
                f"{way:8} every byte is right; straight to and from the GPU: {moved[0]} and {moved[1]} bytes; {speed}"
            )
    if failed:
        return EXIT_FAILED
    return 0 if ran else EXIT_NOT_RUN


if __name__ == "__main__":
    sys.exit(main())

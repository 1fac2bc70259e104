"""The records that Outboard's libcupti writes, field by field against the header that NVIDIA's package has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness import ROOT

HEADERS = ROOT / ".toolchain" / "packages" / "torch" / "lib"
# Padding under names of our own, and members of a union.
OURS = {"processId": "objectId.pt.processId", "threadId": "objectId.pt.threadId"}
UNNAMED = {"objectPad", "padding", "padding3", "pad", "pad2", "reserved", "reserved0", "tail"}


def test_every_field_is_where_the_header_has_it(tmp_path: Path) -> None:
    found = list(HEADERS.glob("python*/site-packages/nvidia/cu13/include/cupti.h"))
    if not found:
        pytest.skip("the packages of PyTorch are not installed, and with them CUPTI's headers")
    command = ["cargo", "run", "--quiet", "-p", "outboard-cupti", "--example", "layouts"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True).stdout
    lines = ["#include <stddef.h>", "#include <cupti.h>"]
    for record, field, offset, size in map(str.split, printed.splitlines()):
        if field in UNNAMED:
            continue
        name = OURS.get(field, field) if record.startswith("CUpti_ActivityOverhead") else field.rstrip("_")
        lines.append(f'_Static_assert(offsetof({record}, {name}) == {offset}, "{record}.{field}: place");')
        lines.append(f'_Static_assert(sizeof((({record} *)0)->{name}) == {size}, "{record}.{field}: size");')
    source = tmp_path / "layouts.c"
    source.write_text("\n".join(lines) + "\n")
    assert len(lines) > 100
    includes = [f"-I{found[0].parent}", f"-I{ROOT / '.toolchain' / 'include'}"]
    done = subprocess.run(["gcc", "-fsyntax-only", *includes, source], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

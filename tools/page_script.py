#!/usr/bin/env python3
"""The script of the pool's page, which the TypeScript compiler makes of page.ts: page_script.py make writes page.js,
page_script.py check fails if page.js is another one. The compiler is the npm package of package-lock.json, installed
below .toolchain; where there is no npm, or no network for the first time, nothing is checked, and that is said. The
build of the manager needs neither."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "crates" / "manager" / "src" / "page"
COMPILER = ROOT / ".toolchain" / "typescript"
LOCK = "package-lock.json"


def compiler() -> list[str] | None:
    """Returns the command of the compiler, which is installed if it is another one or missing; None without npm."""
    if not (shutil.which("node") and shutil.which("npm")):
        return None
    tsc = COMPILER / "node_modules" / "typescript" / "bin" / "tsc"
    installed = COMPILER / "installed.json"
    lock = (PAGE / LOCK).read_text()
    if not tsc.exists() or not installed.exists() or installed.read_text() != lock:
        COMPILER.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", LOCK):
            shutil.copy(PAGE / name, COMPILER)
        argv = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        if subprocess.run(argv, cwd=COMPILER).returncode != 0:
            return None
        installed.write_text(lock)
    return ["node", str(tsc)]


def made(tsc: list[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*tsc, "-p", str(PAGE), "--outDir", folder], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)
        return (Path(folder) / "page.js").read_text()


def main() -> None:
    script = PAGE / "page.js"
    tsc = compiler()
    match sys.argv[1:]:
        case ["make"] if tsc:
            script.write_text(made(tsc))
        case ["check"] if tsc:
            if made(tsc) != script.read_text():
                sys.exit(f"{script.relative_to(ROOT)} is not what page.ts makes: run make page-script")
        case ["check"]:
            print("NOT CHECKED: page.js, for want of node and npm, or of the compiler", file=sys.stderr)
        case ["make"]:
            sys.exit("the compiler cannot be installed: node, npm and a network are needed")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()

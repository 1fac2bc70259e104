"""Builds the wheel: the hooks of PEP 517, with nothing but the standard library of Python 3.11, so that no index is
needed.

The wheel carries the command, the libraries and the headers. Command and libraries come from the folder
OUTBOARD_BINARIES, or cargo builds them. Its tag names the oldest glibc that has every symbol version they need.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

try:
    import tomllib
except ImportError:
    # Before Python 3.11, where pyproject.toml asks for it.
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
# As `make dist` builds them: the libraries, which programs' calls pass through, and the command made small.
LIBRARIES = ["outboard-client", "outboard-nvml", "outboard-cupti", "outboard-recorder", "outboard-nic", "outboard-net"]
COMMAND = "outboard-packaged"
# Cargo's output, and its place in the package, where the command looks for its libraries.
INSTALLED = {
    "outboard": "bin/outboard",
    "liboutboard_client.so": "lib/outboard/libcuda.so.1",
    "liboutboard_nvml.so": "lib/outboard/libnvidia-ml.so.1",
    "liboutboard_cupti.so": "lib/outboard/libcupti.so.13",
    "liboutboard_recorder.so": "lib/outboard/recorder/libcuda.so.1",
    "liboutboard_nic.so": "lib/outboard/liboutboard_nic.so",
    "liboutboard_net.so": "lib/outboard/liboutboard_net.so",
}
# Each file of a wheel has this time, so that the same binaries give the same wheel.
TIME = (1980, 1, 1, 0, 0, 0)


def get_requires_for_build_wheel(config_settings: object = None) -> list[str]:
    return []


def build_wheel(wheel_directory: str, config_settings: object = None, metadata_directory: str | None = None) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    with tempfile.TemporaryDirectory() as folder:
        binaries = stripped(built_files(), Path(folder))
        tag = f"py3-none-{platform_of(binaries.values())}"
        name = f"outboard-{version}-{tag}.whl"
        wheel = Wheel(Path(wheel_directory) / name)
        for path in sorted((ROOT / "python" / "outboard").glob("*.py")):
            wheel.add(f"outboard/{path.name}", path.read_bytes())
        for path in sorted((ROOT / "include" / "outboard").iterdir()):
            wheel.add(f"outboard/installed/include/outboard/{path.name}", path.read_bytes())
        for place, path in binaries.items():
            wheel.add(f"outboard/installed/{place}", path.read_bytes(), executable=True)
        info = f"outboard-{version}.dist-info"
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"]:
            wheel.add(f"{info}/licenses/{licence}", (ROOT / licence).read_bytes())
        wheel.add(f"{info}/METADATA", metadata(project, version).encode())
        about = f"Wheel-Version: 1.0\nGenerator: outboard_build\nRoot-Is-Purelib: false\nTag: {tag}\n"
        wheel.add(f"{info}/WHEEL", about.encode())
        scripts = "".join(f"{name} = {target}\n" for name, target in project["scripts"].items())
        wheel.add(f"{info}/entry_points.txt", f"[console_scripts]\n{scripts}".encode())
        wheel.close(f"{info}/RECORD")
    return name


def built_files() -> dict[str, Path]:
    """The built binaries, by the names that cargo gives to the larger ones of the release build."""
    if given := os.environ.get("OUTBOARD_BINARIES"):
        files = {name: Path(given).absolute() / name for name in INSTALLED}
        if missing := [name for name, path in files.items() if not path.is_file()]:
            sys.exit(f"outboard: OUTBOARD_BINARIES={given} has no {', '.join(missing)}")
        return files
    if not shutil.which("cargo"):
        sys.exit("outboard: cargo is needed to build from source (Rust 1.88 or later); a wheel needs no compiler")
    for profile, packages in (("release", LIBRARIES), ("dist", [COMMAND])):
        named = [f"--package={name}" for name in packages]
        subprocess.run(["cargo", "build", "--profile", profile, "--locked", *named], cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    libraries = {name: target / "release" / name for name in INSTALLED if name != "outboard"}
    return {"outboard": target / "dist" / COMMAND, **libraries}


def stripped(binaries: dict[str, Path], folder: Path) -> dict[str, Path]:
    """Copies of the binaries without symbols, by their places in the package."""
    copies = {}
    for built, place in INSTALLED.items():
        copy = folder / built
        shutil.copy(binaries[built], copy)
        if strip := shutil.which("strip"):
            subprocess.run([strip, "--strip-unneeded", copy], check=True)
        copies[place] = copy
    return copies


def platform_of(binaries: object) -> str:
    """The platform's tag, with the newest glibc that a binary names."""
    machine = sysconfig.get_platform().removeprefix("linux-").replace("-", "_").replace(".", "_")
    versions = {(2, 17)}
    for path in binaries:  # type: ignore[attr-defined]
        found = re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?=[.\0])", path.read_bytes())
        versions |= {(int(major), int(minor)) for major, minor in found}
    major, minor = max(versions)
    return f"manylinux_{major}_{minor}_{machine}"


def metadata(project: dict[str, str], version: str) -> str:
    fields = {
        "Metadata-Version": "2.4",
        "Name": project["name"],
        "Version": version,
        "Summary": project["description"],
        "License-Expression": project["license"],
        "Requires-Python": project["requires-python"],
        "Description-Content-Type": "text/markdown",
    }
    head = "".join(f"{key}: {value}\n" for key, value in fields.items())
    return head + "\n" + (ROOT / project["readme"]).read_text()


class Wheel:
    """A wheel that is written file by file."""

    def __init__(self, path: Path) -> None:
        self.archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = ""

    def add(self, name: str, contents: bytes, executable: bool = False) -> None:
        digest = base64.urlsafe_b64encode(hashlib.sha256(contents).digest()).rstrip(b"=").decode()
        self.record += f"{name},sha256={digest},{len(contents)}\n"
        self.write(name, contents, executable)

    def write(self, name: str, contents: bytes, executable: bool = False) -> None:
        entry = zipfile.ZipInfo(name, TIME)
        entry.external_attr = (0o100755 if executable else 0o100644) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.archive.writestr(entry, contents)

    def close(self, record: str) -> None:
        self.write(record, f"{self.record}{record},,\n".encode())
        self.archive.close()


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "build/wheel")
    target.mkdir(parents=True, exist_ok=True)
    print(target / build_wheel(str(target)))

"""Files that a guest boots, fetched from Debian's packages once and kept in `.toolchain/guest/`."""

from __future__ import annotations

import fcntl
import glob
import lzma
import os
import re
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
KEPT_IN = HERE.parent.parent / ".toolchain" / "guest"
LAYOUT_VERSION = 1  # raise it when install() changes what it leaves behind
APT_S_MAX = 600

KERNEL = "linux-image-amd64"  # the cloud kernel has no rdma_rxe
# Packages of one kernel, where it is not a single one.
KERNEL_PARTS = r"Depends: (linux-(?:base|binary|modules)-\d\S+)"
# A kernel that can change the keys of encrypted connections (Linux 6.14), from a later release of Debian.
NEWER = (
    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie-backports main"
)
BUSYBOX = "busybox-static"  # only unpacked: installed, it would replace a machine's busybox
# Files on a guest's root, and the packages that contain them; none of these starts anything or
# needs udev.
TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "ibv_rc_pingpong": "ibverbs-utils",
    "ib_write_lat": "perftest",
    "modprobe": "kmod",
    "depmod": "kmod",
    "ip": "iproute2",
    "rdma": "iproute2",
    "tc": "iproute2",
    "cpio": "cpio",
}
PROVIDER = "/usr/lib/*/libibverbs/librxe-*.so"
PROVIDER_PACKAGE = "ibverbs-providers"
SEARCHED = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

# Modules that the first process needs to reach the host's files. The rest is loaded from there.
FIRST_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
APPLETS = ("sh", "mount", "mkdir", "insmod", "switch_root")


class Unavailable(Exception):
    """There can be no guest on this machine; the text says what would have to be installed."""


class ImageError(Exception):
    """Something that should have worked did not; the text says what to do."""


@dataclass(frozen=True)
class Image:
    """A kernel, its first file system, and where its modules are (the folder that has `lib/modules`)."""

    kernel: Path
    initramfs: Path
    modules: Path
    # Without it the guest has the kernel's TLS.
    has_rdma: bool = True


def prepare(*, newer: bool = False) -> Image:
    """Installs and fetches what is missing, and says so on the way; costs nothing where all is there. The kernel is
    this release's, or a newer one."""
    install_tools()
    folder = KEPT_IN / f"layout-{LAYOUT_VERSION}{'-newer' if newer else ''}"
    image = Image(folder / "vmlinux", folder / "initramfs", folder / "kernel", has_rdma=not newer)
    if not folder.exists():
        fetch_locked(folder, newer=newer)
    write_initramfs(image)
    return image


def install_tools() -> None:
    missing = {package for tool, package in TOOLS.items() if shutil.which(tool, path=SEARCHED) is None}
    if not glob.glob(PROVIDER):
        missing.add(PROVIDER_PACKAGE)
    if not missing:
        return
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *sorted(missing)]
    if shutil.which("apt-get") is None:
        raise Unavailable(f"of Debian's packages {', '.join(sorted(missing))} are missing, and there is no apt-get")
    if os.geteuid() != 0:
        raise Unavailable(f"packages are missing; install them: sudo {' '.join(command)}")
    say(f"installing {', '.join(sorted(missing))}")
    execute(["apt-get", "update", "-qq"], "could not read the lists of packages")
    execute(command, "could not install what the guest needs")


def fetch_locked(folder: Path, *, newer: bool) -> None:
    """Installs under a lock, because several runs of the tests may start together."""
    KEPT_IN.mkdir(parents=True, exist_ok=True)
    with (KEPT_IN / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            fetch(folder, newer=newer)


def fetch(folder: Path, *, newer: bool) -> None:
    """Beside its place first: what is in place is complete."""
    if shutil.which("apt-get") is None:
        raise Unavailable(f"the kernel is Debian's package {KERNEL}, and there is no apt-get")
    new = folder.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    options = lists_of_newer(new) if newer else []
    kernel = kernel_packages(options)
    say(f"fetching {kernel[0]}")
    for names, place, source in ((kernel, "kernel", options), ([BUSYBOX], "busybox", [])):
        for name in names:
            execute(["apt-get", *source, "download", "-q", name], f"could not fetch {name}: is there a network?", new)
            [archive] = new.glob(f"{name}_*.deb")
            execute(["dpkg-deb", "-x", str(archive), str(new / place)], f"could not unpack {archive.name}")
            archive.unlink()
    # Newer releases keep modules in usr/lib, and depmod and modprobe look into lib.
    if not (new / "kernel" / "lib").exists():
        (new / "kernel" / "lib").symlink_to("usr/lib")
    execute([which("depmod"), "-b", str(new / "kernel"), release_in(new / "kernel")], "could not list the modules")
    [packed] = [*new.glob("kernel/boot/vmlinuz-*"), *new.glob("kernel/usr/lib/modules/*/vmlinuz")]
    (new / "vmlinux").write_bytes(unpacked(packed.read_bytes()))
    new.rename(folder)


def lists_of_newer(folder: Path) -> list[str]:
    """Options with which apt looks at the newer release alone; the machine's own lists stay as they are."""
    (folder / "apt" / "partial").mkdir(parents=True)
    sources = folder / "apt.list"
    sources.write_text(f"{NEWER}\n")
    places = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": folder / "apt",
    }
    places |= {"Dir::Cache::pkgcache": "", "Dir::Cache::srcpkgcache": ""}
    options = [part for name, place in places.items() for part in ("-o", f"{name}={place}")]
    execute(["apt-get", *options, "update", "-qq"], "could not read the lists of the newer release")
    return options


def kernel_packages(options: list[str]) -> list[str]:
    """The kernel that the distribution's own package name stands for today: its package, and those of its parts."""

    def depends(package: str) -> str:
        argv = ["apt-cache", *options, "depends", package]
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout

    listed = depends(KERNEL)
    if "Depends:" not in listed and os.geteuid() == 0 and not options:
        execute(["apt-get", "update", "-qq"], "could not read the lists of packages")
        listed = depends(KERNEL)
    found = re.search(r"Depends: (linux-image-\S+)", listed)
    if found is None:
        raise Unavailable(f"apt-get knows no package {KERNEL}: this is not Debian, or `apt-get update` was never run")
    return [found[1], *re.findall(KERNEL_PARTS, depends(found[1]))]


def release_in(kernel: Path) -> str:
    """`uname -r` of the kernel that was unpacked here."""
    [modules] = (kernel / "lib" / "modules").iterdir()
    return modules.name


def unpacked(kernel: bytes) -> bytes:
    """The ELF file in a bzImage, as Linux's boot protocol says where it is: an emulated processor takes seconds to
    unpack it. Where it is packed by something else than xz, the guest does that itself."""
    setup_sectors = kernel[0x1F1]
    payload_offset, payload_bytes = struct.unpack_from("<II", kernel, 0x248)
    start = (setup_sectors + 1) * 512 + payload_offset
    payload = kernel[start : start + payload_bytes]
    if not payload.startswith(b"\xfd7zXZ"):
        return kernel
    # The length of the ELF file follows the compressed data.
    return lzma.LZMADecompressor().decompress(payload)


def write_initramfs(image: Image) -> None:
    """Written anew whenever what goes into it is newer, so that a change of `init.sh` counts."""
    init = HERE / "init.sh"
    newest = max(path.stat().st_mtime for path in (init, Path(__file__)))
    if image.initramfs.exists() and image.initramfs.stat().st_mtime > newest:
        return
    tree = image.initramfs.with_name(f"initramfs.{os.getpid()}")
    shutil.rmtree(tree, ignore_errors=True)
    for name in ("bin", "modules", "proc", "dev", "host", "layer", "share", "root"):
        (tree / name).mkdir(parents=True)
    shutil.copy(image.initramfs.with_name("busybox") / "bin" / "busybox", tree / "bin")
    for applet in APPLETS:
        (tree / "bin" / applet).symlink_to("busybox")
    shutil.copy(init, tree / "init")
    (tree / "init").chmod(0o755)
    order = modules_of(image.modules, FIRST_MODULES)
    for module in order:
        # The first process cannot unpack them.
        packed = module.read_bytes()
        plain = lzma.decompress(packed) if module.suffix == ".xz" else packed
        (tree / "modules" / module.name).write_bytes(plain)
    (tree / "modules" / "order").write_text("".join(f"{module.name}\n" for module in order))
    names = "".join(f"{path.relative_to(tree)}\0" for path in sorted(tree.rglob("*")))
    pack = ["cpio", "--create", "--format=newc", "--null", "--quiet"]
    packed = subprocess.run(pack, cwd=tree, input=names.encode(), stdout=subprocess.PIPE, check=True).stdout
    shutil.rmtree(tree)
    new = tree.with_suffix(".new")
    new.write_bytes(packed)
    new.rename(image.initramfs)


def modules_of(root: Path, wanted: tuple[str, ...]) -> list[Path]:
    """The files of these modules and of all that they need, in the order in which they can be loaded."""
    files: dict[Path, None] = {}
    for module in wanted:
        argv = [which("modprobe"), "-d", str(root), "-S", release_in(root), "--show-depends", module]
        listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        files |= {Path(path): None for path in re.findall(r"^insmod (\S+)", listed, re.MULTILINE)}
    return list(files)


def which(tool: str) -> str:
    path = shutil.which(tool, path=SEARCHED)
    if path is None:
        raise ImageError(f"{tool} is missing (package {TOOLS[tool]})")
    return path


def execute(command: list[str], failure: str, folder: Path | None = None) -> None:
    """Runs the command; on failure its own last words and then what it means here."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "PATH": SEARCHED}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=APT_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ImageError(f"{failure}\n  {' '.join(command)} took longer than {APT_S_MAX} s") from None
    if done.returncode != 0:
        last_words = "\n".join("  " + line for line in done.stdout.strip().splitlines()[-4:])
        raise ImageError(f"{failure}\n{last_words}")


def say(text: str) -> None:
    print(f"guest: {text}", flush=True)

#!/usr/bin/env python3
"""Checks what rustfmt, clippy and ruff do not: run by `make lint`.

    python3 tools/tidy.py            prints what is wrong, file and line, and fails
    python3 tools/tidy.py --unsafe   prints how often each module says `unsafe`, tests apart
    python3 tools/tidy.py --lower    writes the counts of `tools/tidy.json` that have fallen

Three rules hold for what is new only: `tools/tidy.json` has, by crate, how many old comments, and modules that import
each other in a circle, break them. A count may fall and never rise.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import imports

ROOT = Path(__file__).resolve().parent.parent
COUNTS = ROOT / "tools" / "tidy.json"

COLUMNS_MAX = 100
FUNCTION_LINES_MAX = 70
FUNCTION = re.compile(r"(\s*)(?:pub(?:\([^)]*\))? )?(?:const )?(?:unsafe )?(?:extern \"C\" )?fn (\w+)(?!.*[;}]$)")
COMMENT = re.compile(r"^\s*//")
DOC = re.compile(r"^\s*//[/!]( |$)")
# A doc comment begins with a noun or a verb, and names who acts.
OPENING = re.compile(r"^\s*//[/!] (What|Who|Whoever|Whatever|The same)\b")

# A SAFETY comment says what is known at its place: not where that is said, and not that somebody promised it.
ELSEWHERE = re.compile(
    r"// SAFETY: (?:(?:as|see) (?:above|below|before|for|in|there|the|\[)"
    r"|the module's|the (?:caller|program)'s (?:\w+|contract is .*|promise is .*)\.$)",
    re.IGNORECASE,
)

# Words of the machine or the day on which a change was made.
FOREIGN = {
    "the absolute path of somebody's machine": re.compile(r"(?<![\w.}])/(?:work|home)/\w"),
    "the number of an issue": re.compile(r"\bissues? #?\d+\b", re.IGNORECASE),
    "the host of a package registry": re.compile(r"\b(?:static\.crates|index\.crates|pypi|pythonhosted)\.(?:io|org)\b"),
}
TEXT = {".rs", ".py", ".md", ".toml", ".sh", ".cu", ".cpp", ".c", ".h", ".calls", ".ops", ".json", ".yml", ".txt"}

# The number of cores is read here, and where it is no decision: reports of a machine, and threads of tools.
CORES = "crates/link/src/cores.rs"
CORES_READ = {
    CORES,
    "crates/trace/src/live.rs",
    "crates/truth/src/record.rs",
    "crates/flow/peers/src/main.rs",
    "crates/ptx/examples/throughput/main.rs",
}

# A number in prose, and the place that it must agree with; points do not count.
NUMBERS = [
    ("README.md", r"Rust ([\d.]+\d)", "Cargo.toml", r'rust-version = "([\d.]+)"'),
    ("README.md", r"Python ([\d.]+\d) or later", "ruff.toml", r'target-version = "py(\d+)"'),
    ("tools/toolchain.py", r"Python ([\d.]+\d) or later", "ruff.toml", r'target-version = "py(\d+)"'),
    (
        "docs/software-gpu.md",
        r"compute capability ([\d.]+\d)",
        CAPABILITY := "crates/soft/src/capability.rs",
        DEFAULT := r"^/// ([\d.]+\d), the capability",
    ),
    ("docs/software-gpu.md", r"([\d.]+\d) \(the default\)", CAPABILITY, DEFAULT),
    ("SPECIFICATION.md", r"Compute capability ([\d.]+\d), or another", CAPABILITY, DEFAULT),
    ("crates/ptx/src/lib.rs", r"compute capability ([\d.]+\d)", CAPABILITY, DEFAULT),
]
# Crates, and those that they do not depend on, not even in tests: the session engine and the devices know the trait
# between them, and not each other.
APART = {
    "device": {"outboard-nvidia", "outboard-soft", "outboard-session", "outboard-server"},
    "session": {"outboard-nvidia", "outboard-soft", "outboard-server", "outboard-ptx"},
    "nvidia": {"outboard-soft", "outboard-session", "outboard-server", "outboard-ptx"},
    "soft": {"outboard-nvidia", "outboard-session", "outboard-server", "outboard-driver"},
}
# The model knows the driver's calls by the attributes of their declarations, and none by its name.
NAMELESS = re.compile(r"crates/(model/(src/.*|build)|generate/src/model)\.rs")
CALL_NAME = re.compile(r'"cu[A-Z]')
# How long `make check` and `make test` take is said in CONTRIBUTING.md alone.
WITHOUT_MINUTES = ["README.md", "ARCHITECTURE.md", "Makefile"]

# Licences that go with Apache-2.0 OR MIT.
LICENCES = {
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-3-Clause",
    "ISC",
    "Unicode-3.0",
    "CC0-1.0",
}
# Files of tests, below a crate's `src`.
TESTS = re.compile(r"(^|/)tests?(/|$)|_tests$|(^|/)hostile$")
# Versions of one crate that others force on us; a third needs a reason.
# ring asks for getrandom 0.2, and for a windows-sys that is never built here.
TWICE = {"embedded-io", "getrandom", "syn", "windows-sys"}
# Crates that would each be a hundredth or more of the packaged command, for little: nothing in it needs them.
LARGE = {"regex", "regex-automata", "schemars"}


class Found(NamedTuple):
    """One violation: where, and what."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lower", action="store_true", help="write the counts that have fallen")
    parser.add_argument("--unsafe", action="store_true", help="print how often each module says `unsafe`")
    arguments = parser.parse_args()
    if arguments.unsafe:
        for crate, modules in unsafe_of([ROOT / name for name in tracked()]).items():
            print(f"{crate}: " + ", ".join(f"{module} {count}" for module, count in modules.most_common()))
        return 0
    files = [ROOT / name for name in tracked()]
    found = [
        *foreign(files),
        *cores(files),
        *call_names(files),
        *versions(),
        *apart(),
        *numbers(),
        *minutes(),
        *licences(),
        *twice(),
        *large(),
        *unsafe_is_named(files),
        *one_page(),
        *second_styles(files),
    ]
    kept: dict[str, dict[str, int]] = json.loads(COUNTS.read_text())
    old = {
        "long comments": by_crate(long_comments(files)),
        "openings": by_crate(openings(files)),
        "reasons elsewhere": by_crate(reasons_elsewhere(files)),
        "long functions": by_crate(long_functions(files)),
        "modules in circles": by_crate(circles(files)),
    }
    found += risen(old, kept)
    if arguments.lower:
        lower(old, kept)
    for one in found:
        print(one)
    return 1 if found else 0


def tracked() -> list[str]:
    """The files of the repository, new ones included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in listed if (ROOT / name).is_file()]


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    return enumerate(path.read_text(errors="replace").splitlines(), 1)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def long_comments(files: Iterable[Path]) -> Iterator[Found]:
    for path in files:
        if path.suffix == ".rs":
            for number, line in lines_of(path):
                if COMMENT.match(line) and len(line) > COLUMNS_MAX:
                    yield Found(name_of(path), number, f"a comment of {len(line)} columns, {COLUMNS_MAX} at most")


def openings(files: Iterable[Path]) -> Iterator[Found]:
    for path in files:
        if path.suffix == ".rs":
            before = ""
            for number, line in lines_of(path):
                if (opening := OPENING.match(line)) and not DOC.match(before):
                    yield Found(name_of(path), number, f'a doc comment that begins with "{opening[1]}"')
                before = line


def reasons_elsewhere(files: Iterable[Path]) -> Iterator[Found]:
    for path in files:
        if path.suffix == ".rs":
            for number, line in lines_of(path):
                if found := ELSEWHERE.search(line):
                    yield Found(name_of(path), number, f'"{found[0][3:]}": name the fact that makes it sound')


def circles(files: Iterable[Path]) -> Iterator[Found]:
    """The modules that import each other in a circle, each with an import that belongs to it."""
    for path in files:
        if re.fullmatch(r"crates/\w+/src/lib\.rs", name_of(path)):
            root = imports.read_crate(path)
            for circle in imports.circles(root, list(imports.imports_of(root))):
                for one in circle.imports:
                    what = f"{one.name} of {name_of(one.target.file)}, in a circle of {len(circle.imports)} modules"
                    yield Found(name_of(one.source.file), one.line, what)


def long_functions(files: Iterable[Path]) -> Iterator[Found]:
    """Functions that do not fit a screen. rustfmt ends a function where its own indentation returns."""
    for path in files:
        if path.suffix == ".rs":
            open_at: dict[str, tuple[int, str]] = {}
            for number, line in lines_of(path):
                if start := FUNCTION.match(line):
                    open_at[start[1]] = number, start[2]
                elif (end := re.match(r"(\s*)\}", line)) and end[1] in open_at:
                    first, name = open_at.pop(end[1])
                    if (count := number - first + 1) > FUNCTION_LINES_MAX:
                        yield Found(name_of(path), first, f"{name} has {count} lines, {FUNCTION_LINES_MAX} at most")


def second_styles(files: Iterable[Path]) -> Iterator[Found]:
    """A module in several files is `foo/mod.rs`, not `foo.rs` beside `foo/`."""
    for path in files:
        if path.suffix == ".rs" and "/src/" in name_of(path) and path.with_suffix("").is_dir():
            yield Found(name_of(path), 1, f"belongs to {path.stem}/mod.rs")


def by_crate(found: Iterable[Found]) -> dict[str, list[Found]]:
    crates = defaultdict(list)
    for one in found:
        crates["/".join(one.path.split("/")[:2])].append(one)
    return crates


def risen(old: dict[str, dict[str, list[Found]]], kept: dict[str, dict[str, int]]) -> Iterator[Found]:
    """All violations of a rule in the crates that have more than before: which one is new nobody knows."""
    for rule, crates in old.items():
        for crate, violations in crates.items():
            if len(violations) > (count_max := kept[rule].get(crate, 0)):
                yield from violations
                yield Found(crate, 0, f"{len(violations)} {rule}, {count_max} at most (tools/tidy.json)")


def lower(old: dict[str, dict[str, list[Found]]], kept: dict[str, dict[str, int]]) -> None:
    counts = {
        rule: {crate: count for crate, most in crates.items() if (count := min(most, len(old[rule].get(crate, []))))}
        for rule, crates in kept.items()
    }
    COUNTS.write_text(json.dumps(counts, indent=2) + "\n")


def foreign(files: Iterable[Path]) -> Iterator[Found]:
    for path in files:
        if path.suffix in TEXT or path.name == "Makefile":
            for number, line in lines_of(path):
                for what, words in FOREIGN.items():
                    if words.search(line) and path != Path(__file__):
                        yield Found(name_of(path), number, f"{what}: {line.strip()[:80]}")


def unsafe_of(files: Iterable[Path]) -> dict[str, Counter[str]]:
    """How often each crate's modules, the first below `src`, say `unsafe` outside of comments and tests."""
    counts: dict[str, Counter[str]] = {}
    for path in files:
        match = re.match(r"crates/(\w+)/src/(.+)\.rs$", name_of(path))
        if match and not TESTS.search(match[2]):
            code = "\n".join(line.split("//")[0] for _, line in lines_of(path))
            if count := len(re.findall(r"\bunsafe\b", code)):
                counts.setdefault(match[1], Counter())[match[2].split("/")[0]] += count
    return counts


def unsafe_is_named(files: Iterable[Path]) -> Iterator[Found]:
    """ARCHITECTURE.md's table of crates names each module with `unsafe`."""
    named: dict[str, tuple[int, set[str]]] = {}
    for number, line in lines_of(ROOT / "ARCHITECTURE.md"):
        if row := re.match(r"\| `(\w+)` \| .* \| ([^|]*) \|$", line):
            named[row[1]] = number, set(re.findall(r"`(\w+)`", row[2]))
    for crate, modules in unsafe_of(files).items():
        number, known = named.get(crate, (0, set()))
        for module in sorted(modules.keys() - known):
            yield Found("ARCHITECTURE.md", number, f"the row of `{crate}` does not name `{module}`, which has unsafe")


def one_page() -> Iterator[Found]:
    """The numbers on the first page of SPECIFICATION.md stand in the sections that its lines name, too."""
    path = ROOT / "SPECIFICATION.md"
    sections: dict[str, str] = {}
    anchor = ""
    for _, line in lines_of(path):
        if title := re.match(r"##+ (.+)", line):
            anchor = re.sub(r"[^a-z0-9 -]", "", title[1].lower()).replace(" ", "-")
        sections[anchor] = sections.get(anchor, "") + line + "\n"
    for number, line in lines_of(path):
        if row := re.match(r"\| (.*) \| \[[^]]+\]\(#([\w-]+)\) \|$", line):
            for figure in re.findall(r"(?<![\w.,])\d[\d.,]*(?:e-\d+)?(?<![.,])", row[1]):
                if not re.search(rf"(?<![\w.,]){re.escape(figure)}(?![\d])", sections.get(row[2], "")):
                    yield Found(path.name, number, f"{figure} is not in the section {row[2]}")


def cores(files: Iterable[Path]) -> Iterator[Found]:
    for path in files:
        if path.suffix == ".rs" and name_of(path) not in CORES_READ:
            for number, line in lines_of(path):
                if "available_parallelism" in line:
                    yield Found(name_of(path), number, f"the number of cores is read by {CORES}")


def call_names(files: Iterable[Path]) -> Iterator[Found]:
    """A driver call that the model's own code names, tests apart."""
    for path in files:
        if NAMELESS.fullmatch(name_of(path)) and not TESTS.search(name_of(path).removesuffix(".rs")):
            for number, line in lines_of(path):
                if line.startswith("#[cfg(test)]"):
                    break
                if CALL_NAME.search(line):
                    yield Found(name_of(path), number, "a call's name: what it does is an attribute in driver.calls")


def versions() -> Iterator[Found]:
    """A dependency's version stands in the workspace's Cargo.toml."""
    for path in sorted(ROOT.glob("crates/*/Cargo.toml")):
        manifest = tomllib.loads(path.read_text())
        tables = [manifest, *manifest.get("target", {}).values()]
        for table in tables:
            for kind in ["dependencies", "dev-dependencies", "build-dependencies"]:
                for name, wanted in table.get(kind, {}).items():
                    if isinstance(wanted, str) or "version" in wanted:
                        yield Found(name_of(path), 0, f"{name}: its version belongs into the workspace's Cargo.toml")


def apart() -> Iterator[Found]:
    for crate, others in APART.items():
        path = ROOT / "crates" / crate / "Cargo.toml"
        manifest = tomllib.loads(path.read_text())
        for kind in ["dependencies", "dev-dependencies"]:
            for name in sorted(others & manifest.get(kind, {}).keys()):
                yield Found(name_of(path), 0, f"{crate} and {name} do not know each other")


def numbers() -> Iterator[Found]:
    for path, said, source, known in NUMBERS:
        one, other = (
            re.search(find, (ROOT / file).read_text(), re.MULTILINE) for file, find in [(path, said), (source, known)]
        )
        if one is None or other is None:
            yield Found(
                path if one is None else source, 0, "a number that tools/tidy.py compares is not there any more"
            )
        elif one[1].replace(".", "") != other[1].replace(".", ""):
            yield Found(path, 0, f'"{one[0]}", and {source} says {other[1]}')


def minutes() -> Iterator[Found]:
    for name in WITHOUT_MINUTES:
        for number, line in lines_of(ROOT / name):
            if re.search(r"\bminutes?\b", line) and re.search(r"make (test|check)|tests", line):
                yield Found(name, number, "how long tests take is said in CONTRIBUTING.md")


def licences() -> Iterator[Found]:
    """Each crate that is linked has a licence that goes with ours; of alternatives one suffices."""
    command = [
        "cargo",
        "metadata",
        "--format-version",
        "1",
        "--filter-platform",
        "x86_64-unknown-linux-gnu",
        "--locked",
    ]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    for package in metadata["packages"]:
        if not is_permitted(package["license"] or ""):
            yield Found("Cargo.lock", 0, f"{package['name']} {package['version']}: licence {package['license']}")


def is_permitted(licence: str) -> bool:
    """Whether all that is joined by AND, and one of each that is joined by OR, is permitted."""
    joined = re.sub(r"\s*/\s*", " OR ", licence)
    parts = re.split(r" AND (?![^(]*\))", joined)
    return all(any(one.strip(" ()") in LICENCES for one in part.split(" OR ")) for part in parts)


def twice() -> Iterator[Found]:
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    count = Counter(package["name"] for package in locked)
    for name, versions_count in count.items():
        if versions_count > (2 if name in TWICE else 1):
            yield Found("Cargo.lock", 0, f"{versions_count} versions of {name}")


def large() -> Iterator[Found]:
    command = ["cargo", "tree", "--package", "outboard-packaged", "--edges", "normal", "--prefix", "none", "--locked"]
    linked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in sorted(LARGE & {line.split(" ")[0] for line in linked.splitlines()}):
        yield Found("Cargo.toml", 0, f"{name} is linked into the packaged command, which is to stay small")


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Finds who imports whom among the modules of a crate, and circles among them: part of `make lint`.

    python3 tools/imports.py client          prints a table of the modules of crates/client, and its circles
    python3 tools/imports.py client --lines  prints each import too: file, line, name and the file that defines it

An import counts for the file that defines the imported name, whatever re-exports lie between. Modules are compared with
those of the same parent; a folder's module includes all files below it. A module and its own submodules are one module
to all others, so those two may use each other. Code for tests does not count.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

IDENTIFIER = r"(?:r#)?[A-Za-z_]\w*"
TEST_ONLY = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]")
MODULE = re.compile(rf"(?:^|(?<=[\s;{{}}\]]))(?:pub(?:\([^)]*\))?\s+)?mod\s+({IDENTIFIER})\s*;")
USE = re.compile(r"(?:^|(?<=[\s;{}\]]))(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);")
ITEM = re.compile(
    r"(?:^|(?<=[\s;{}\]]))(?:fn|struct|enum|union|trait|type|static(?:\s+mut)?|const|macro_rules!)\s+"
    rf"({IDENTIFIER})"
)
PATH = re.compile(rf"(?<![\w:])((?:{IDENTIFIER}\s*::\s*)+{IDENTIFIER})")


class Import(NamedTuple):
    """One use of a name: where, which name, and the module that defines it."""

    source: Module
    line: int
    name: str
    target: Module


@dataclass(eq=False)
class Module:
    """A module that has a file of its own."""

    name: str
    file: Path
    parent: Module | None
    # The text without comments, strings and code for tests; lines are kept.
    text: str = ""
    children: dict[str, Module] = field(default_factory=dict)
    items: set[str] = field(default_factory=set)
    # Names that `use` brings into the module, by their whole paths; and modules whose names it brings all.
    uses: dict[str, list[str]] = field(default_factory=dict)
    globs: list[list[str]] = field(default_factory=list)
    use_lines: dict[str, int] = field(default_factory=dict)

    def ancestors(self) -> list[Module]:
        """The module itself, its parent, and so on to the crate's root."""
        chain = [self]
        while (parent := chain[-1].parent) is not None:
            chain.append(parent)
        return chain

    def path(self) -> str:
        return "::".join(module.name for module in reversed(self.ancestors()))

    def inside(self) -> Iterator[Module]:
        yield self
        for child in self.children.values():
            yield from child.inside()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("crate", help="a folder below crates/")
    parser.add_argument("--lines", action="store_true", help="print each import too")
    arguments = parser.parse_args()
    root = read_crate(ROOT / "crates" / arguments.crate / "src" / "lib.rs")
    imports = list(imports_of(root))
    for parent in root.inside():
        if parent.children:
            print_table(parent, imports)
    if arguments.lines:
        for one in sorted(imports, key=lambda i: (i.source.path(), i.line)):
            print(f"{place(one)}: {one.name} of {shown(one.target.file)}")
    found = list(circles(root, imports))
    for circle in found:
        print(circle)
    return 1 if found else 0


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def place(one: Import) -> str:
    return f"{shown(one.source.file)}:{one.line}"


# The crate's modules.


def read_crate(file: Path) -> Module:
    """The root module of a crate, with all modules below it."""
    return read_module("crate", file, None)


def read_module(name: str, file: Path, parent: Module | None) -> Module:
    module = Module(name, file, parent)
    module.text = without_tests(without_strings(file.read_text()))
    folder = file.parent if file.name in ("lib.rs", "main.rs", "mod.rs") else file.with_suffix("")
    for child in MODULE.findall(module.text):
        for candidate in (folder / f"{child}.rs", folder / child / "mod.rs"):
            if candidate.is_file():
                module.children[child] = read_module(child, candidate, module)
                break
    module.items = set(ITEM.findall(module.text))
    for match in USE.finditer(module.text):
        line = module.text.count("\n", 0, match.start(2)) + 1
        for path, alias in use_tree(match[2]):
            if path[-1] == "*":
                module.globs.append(path[:-1])
            else:
                module.uses[alias] = path
                module.use_lines[alias] = line
    return module


def use_tree(text: str) -> Iterator[tuple[list[str], str]]:
    """The paths of a `use`, each with the name that it has here."""
    text = " ".join(text.split())
    if (brace := text.find("{")) < 0:
        path, _, alias = text.partition(" as ")
        parts = [part.strip() for part in path.split("::") if part.strip()]
        if parts[-1] == "self" and len(parts) > 1:
            parts.pop()
        yield parts, alias.strip() or parts[-1]
        return
    prefix = text[:brace]
    for part in split_at_commas(text[brace + 1 : text.rindex("}")]):
        yield from use_tree(prefix + part)


def split_at_commas(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for at, char in enumerate(text):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    if rest := text[start:].strip():
        yield rest


STRINGS = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | b?r(?P<hashes>\#*)".*?"(?P=hashes) | [bc]?"(?:\\.|[^"\\])*"
      | b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.)|[^'\\\n])'""",
    re.VERBOSE | re.DOTALL,
)


def without_strings(text: str) -> str:
    """The text without comments, strings and characters; lines are kept."""
    return STRINGS.sub(lambda match: " " + "\n" * match[0].count("\n"), text)


def without_tests(text: str) -> str:
    """The text without the items that are compiled for tests only; lines are kept."""
    while match := TEST_ONLY.search(text):
        end = end_of_item(text, match.end())
        text = text[: match.start()] + "\n" * text.count("\n", match.start(), end) + text[end:]
    return text


def end_of_item(text: str, at: int) -> int:
    """The end of the item at this place: a semicolon, a comma of a list, or the brace that closes it."""
    depth = 0
    while at < len(text):
        char = text[at]
        if char in "({[":
            depth += 1
        elif char in ")}]":
            depth -= 1
            if depth < 0:
                return at
            if depth == 0 and char == "}":
                return at + 1
        elif char in ";," and depth == 0:
            return at + 1
        at += 1
    return at


# Names and the modules that define them.


def imports_of(root: Module) -> Iterator[Import]:
    """All imports between the crate's files."""
    for module in root.inside():
        seen = set()
        for line, path in paths_of(module):
            target = resolve(module, path)
            if target is not None and target is not module and (target, path[-1]) not in seen:
                seen.add((target, path[-1]))
                yield Import(module, line, path[-1], target)


def paths_of(module: Module) -> Iterator[tuple[int, list[str]]]:
    """The paths that a module names, with their lines: in `use`, in code, and by a `use` of everything."""
    for name, path in module.uses.items():
        # A module that is imported counts by what is named of it, except where generated code names it.
        if module_at(module, path) is None or "include!" in module.text:
            yield module.use_lines[name], path
    code = USE.sub(lambda match: "\n" * match[0].count("\n"), module.text)
    for match in PATH.finditer(code):
        line = code.count("\n", 0, match.start()) + 1
        yield line, [part.strip() for part in match[1].split("::")]
    words = None
    for glob in module.globs:
        origin = module_at(module, glob)
        if origin is not None and origin is not module:
            words = words or set(re.findall(IDENTIFIER, code))
            for name in sorted(names_of(origin, set()) & words):
                line = code.count("\n", 0, re.search(rf"\b{name}\b", code).start()) + 1  # type: ignore[union-attr]
                yield line, [*glob, name]


def names_of(module: Module, seen: set[Module]) -> set[str]:
    """The names that a `use` of everything of a module brings."""
    if module in seen:
        return set()
    seen.add(module)
    names = module.items | module.children.keys() | module.uses.keys()
    for glob in module.globs:
        if (origin := module_at(module, glob)) is not None:
            names |= names_of(origin, seen)
    return names


def module_at(here: Module, path: list[str]) -> Module | None:
    """The module of this path, if it is one of the crate's."""
    found = walk(here, path, set())
    return found[0] if found is not None and not found[1] else None


def resolve(here: Module, path: list[str]) -> Module | None:
    """The module that defines what a path names; `None` for names of other crates and of the function."""
    found = walk(here, path, set())
    return found[0] if found is not None else None


Seen = set[tuple[Module, str]]


def walk(here: Module, path: list[str], seen: Seen) -> tuple[Module, list[str]] | None:
    """The module that defines the first part of a path that is no module, and the parts from there on."""
    first, rest = path[0], path[1:]
    if first == "crate":
        return inside(here.ancestors()[-1], rest, seen)
    if first == "self":
        return inside(here, rest, seen)
    if first == "super":
        return inside(here.parent, rest, seen) if here.parent is not None else None
    if first in here.children:
        return inside(here.children[first], rest, seen)
    if first in here.uses and (here, first) not in seen:
        seen.add((here, first))
        return walk(here, [*here.uses[first], *rest], seen)
    return None


def inside(module: Module, path: list[str], seen: Seen) -> tuple[Module, list[str]] | None:
    """Does the work of `walk` for a path that begins inside a module."""
    if not path:
        return module, []
    first, rest = path[0], path[1:]
    if first == "super" and module.parent is not None:
        return inside(module.parent, rest, seen)
    if first in module.children and (rest or first not in module.items):
        return inside(module.children[first], rest, seen)
    if first in module.items:
        return module, path
    if (module, first) in seen:
        return None
    seen.add((module, first))
    if first in module.uses:
        return walk(module, [*module.uses[first], *rest], seen)
    for glob in module.globs:
        found = walk(module, [*glob, *path], seen)
        if found is not None:
            return found
    # Defined by a macro or in a generated file, if anywhere.
    return (module, path) if "include!" in module.text else None


# Circles.


def siblings(one: Import) -> tuple[Module, Module, Module] | None:
    """The parent at which the two ends of an import part, and its submodules towards each end."""
    source, target = one.source.ancestors(), one.target.ancestors()
    while len(source) > 1 and len(target) > 1 and source[-2] is target[-2]:
        source.pop()
        target.pop()
    if len(source) < 2 or len(target) < 2:
        return None
    return source[-1], source[-2], target[-2]


def graph_of(parent: Module, imports: Iterable[Import]) -> dict[Module, dict[Module, list[Import]]]:
    """The imports between the submodules of a module."""
    graph: dict[Module, dict[Module, list[Import]]] = {child: defaultdict(list) for child in parent.children.values()}
    for one in imports:
        ends = siblings(one)
        if ends is not None and ends[0] is parent:
            graph[ends[1]][ends[2]].append(one)
    return graph


def knots(graph: dict[Module, dict[Module, list[Import]]]) -> list[list[Module]]:
    """The strongly connected parts of more than one module (Tarjan)."""
    order: dict[Module, int] = {}
    low: dict[Module, int] = {}
    stack: list[Module] = []
    found: list[list[Module]] = []

    def visit(module: Module) -> None:
        order[module] = low[module] = len(order)
        stack.append(module)
        for target in graph[module]:
            if target not in order:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], order[target])
        if low[module] == order[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(stack[at:])
            del stack[at:]

    for module in graph:
        if module not in order:
            visit(module)
    return found


class Circle(NamedTuple):
    """Modules of one parent that import each other in circles, and for each module an import of another one."""

    parent: Module
    modules: list[Module]
    imports: list[Import]

    def __str__(self) -> str:
        names = ", ".join(sorted(module.name for module in self.modules))
        steps = "".join(f"\n    {place(one)}: {one.name} of {shown(one.target.file)}" for one in self.imports)
        return f"{shown(self.parent.file)}: {len(self.modules)} modules in a circle: {names}{steps}"


def circles(root: Module, imports: list[Import]) -> Iterator[Circle]:
    for parent in root.inside():
        graph = graph_of(parent, imports)
        for modules in knots(graph):
            yield Circle(parent, modules, [step_of(graph, module, modules) for module in modules])


def step_of(graph: dict[Module, dict[Module, list[Import]]], start: Module, modules: list[Module]) -> Import:
    """The first import of a shortest circle through a module."""
    ways: dict[Module, Import] = {}
    queue = [start]
    while start not in ways:
        module = queue.pop(0)
        for target, imports in graph[module].items():
            if target in modules and target not in ways:
                ways[target] = ways.get(module, imports[0])
                queue.append(target)
    return ways[start]


# The table.


def print_table(parent: Module, imports: list[Import]) -> None:
    """Prints the submodules of a module, lowest layer first, each with those that it imports."""
    graph = graph_of(parent, imports)
    layers = layers_of(graph)
    print(f"{parent.path()} ({shown(parent.file)})")
    width = max(len(module.name) for module in graph)
    for module in sorted(graph, key=lambda m: (layers[m], m.name)):
        names = " ".join(sorted(target.name for target in graph[module]))
        print(f"  {layers[module]:2} {module.name:{width}}  {names}".rstrip())
    print()


def layers_of(graph: dict[Module, dict[Module, list[Import]]]) -> dict[Module, int]:
    """How many layers lie below each module; modules of a circle are in one layer."""
    knot_of = {module: frozenset(knot) for knot in knots(graph) for module in knot}
    layers: dict[Module, int] = {}

    def layer(module: Module) -> int:
        if module not in layers:
            members = knot_of.get(module, frozenset([module]))
            below = {target for member in members for target in graph[member]} - members
            for member in members:
                layers[member] = -1
            number = 1 + max((layer(target) for target in below), default=-1)
            for member in members:
                layers[member] = number
        return layers[module]

    for module in graph:
        layer(module)
    return layers


if __name__ == "__main__":
    sys.exit(main())

"""tools/imports.py finds circles of modules, however the names go."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import imports

pytestmark = pytest.mark.smoke


def circles(folder: Path, files: dict[str, str]) -> list[set[str]]:
    """The circles of a crate of these files, by the names of their modules."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    root = imports.read_crate(folder / "lib.rs")
    found = list(imports.circles(root, list(imports.imports_of(root))))
    return [{module.name for module in circle.modules} for circle in found]


def test_layers_are_no_circle(tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod low;\nmod mid;\npub mod high;",
        "low.rs": "pub fn a() {}",
        "mid.rs": "use crate::low;\npub fn b() { low::a() }",
        "high.rs": "use crate::{low::a, mid};\nfn c() { a(); mid::b() }",
    }
    assert circles(tmp_path, files) == []
    root = imports.read_crate(tmp_path / "lib.rs")
    layers = imports.layers_of(imports.graph_of(root, list(imports.imports_of(root))))
    assert {module.name: layer for module, layer in layers.items()} == {"low": 0, "mid": 1, "high": 2}


def test_a_circle_is_said_by_its_files(tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod one;\nmod two;\nmod three;",
        "one.rs": "use crate::two::b;\npub fn a() { b() }",
        "two.rs": "pub fn b() {\n    crate::three::c()\n}",
        "three.rs": "use super::one;\npub fn c() { one::a() }",
    }
    assert circles(tmp_path, files) == [{"one", "two", "three"}]
    root = imports.read_crate(tmp_path / "lib.rs")
    said = str(next(imports.circles(root, list(imports.imports_of(root)))))
    for step in ["one.rs:1: b of", "two.rs:2: c of", "three.rs:2: a of"]:
        assert step in said


@pytest.mark.parametrize(
    "door",
    [
        "pub use crate::two::b;",
        "pub use crate::two::*;",
        "pub use self::inner::b;\nmod inner { }\npub use crate::two::{self, b};",
        "pub use crate::two::b as c;\npub use self::c as b;",
    ],
)
def test_a_name_counts_for_the_file_that_defines_it(tmp_path: Path, door: str) -> None:
    files = {
        "lib.rs": "mod door;\nmod one;\nmod two;",
        "door.rs": door,
        "one.rs": "use crate::door;\npub fn a() { door::b() }",
        "two.rs": "use crate::one::a;\npub fn b() { a() }",
    }
    assert {"one", "two"} in circles(tmp_path, files)


def test_a_folder_is_one_module_to_others(tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod folder;\nmod other;",
        "folder/mod.rs": "mod left;\nmod right;\npub struct Shared;",
        "folder/left.rs": "use super::Shared;\nuse crate::other::b;",
        "folder/right.rs": "pub struct Right;",
        "other.rs": "use crate::folder::right::Right;\npub fn b() {}",
    }
    assert circles(tmp_path, files) == [{"folder", "other"}]


def test_circles_inside_a_folder_are_found(tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod folder;",
        "folder.rs": "mod left;\nmod right;\npub(crate) use self::{left::L, right::R};",
        "folder/left.rs": "use super::R;\npub struct L;",
        "folder/right.rs": "use super::*;\npub struct R(L);",
    }
    assert circles(tmp_path, files) == [{"left", "right"}]


def test_generated_code_may_name_all_that_is_imported(tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod entry;\nmod guard;",
        "entry.rs": 'use crate::guard;\ninclude!(concat!(env!("OUT_DIR"), "/entry.rs"));',
        "guard.rs": "use crate::entry::CALLS;",
    }
    assert circles(tmp_path, files) == [{"entry", "guard"}]


def test_tests_comments_and_strings_do_not_count(tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod one;\nmod two;",
        "one.rs": "pub fn a() {}\n#[cfg(test)]\nmod tests {\n    use crate::two::b;\n}",
        "two.rs": 'use crate::one::a;\n// crate::one\npub fn b() { a() }\nconst S: &str = "crate::one::a";',
    }
    assert circles(tmp_path, files) == []
    (tmp_path / "one.rs").write_text(
        '// use crate::two::b;\npub fn a(c: char) -> bool { c == \'"\' }\nstatic S: &str = "crate::two::b";'
    )
    assert circles(tmp_path, {}) == []

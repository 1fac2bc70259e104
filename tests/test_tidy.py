"""tools/tidy.py finds each kind of what it is for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import tidy

pytestmark = pytest.mark.smoke


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    (tmp_path / "crates" / "one" / "src").mkdir(parents=True)
    return tmp_path


def rust(tree: Path, *lines: str) -> Path:
    file = tree / "crates" / "one" / "src" / "lib.rs"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_old_comments_may_only_become_fewer(tree: Path) -> None:
    file = rust(tree, "/// What it is.", "/// Who", "fn a() {}", "/// The same again.", "// " + "x" * 98)
    old = {
        "long comments": tidy.by_crate(tidy.long_comments([file])),
        "openings": tidy.by_crate(tidy.openings([file])),
    }
    assert {rule: len(found["crates/one"]) for rule, found in old.items()} == {"long comments": 1, "openings": 2}
    kept = {"long comments": {"crates/one": 1}, "openings": {"crates/one": 2}}
    assert list(tidy.risen(old, kept)) == []
    kept["openings"]["crates/one"] = 1
    assert [found.line for found in tidy.risen(old, kept)] == [1, 4, 0]


def test_a_safety_comment_names_its_reason(tree: Path) -> None:
    file = rust(
        tree,
        "    // SAFETY: as above.",
        "// SAFETY: see the module's contract.",
        "    // SAFETY: the caller's promise.",
        "/// SAFETY: the caller's promise is passed on as it is.",
        "// SAFETY: the caller's buffer has `len` bytes.",
        "// SAFETY: as many entries as `count` says.",
    )
    assert [found.line for found in tidy.reasons_elsewhere([file])] == [1, 2, 3, 4]


def test_words_of_a_machine_are_found(tree: Path) -> None:
    file = rust(
        tree,
        "// See iss" + "ue 12.",
        "// /ho" + "me/somebody/file",
        "// an issue of 12 bytes",
        "// https://pypi." + "org",
    )
    assert [found.line for found in tidy.foreign([file])] == [1, 2, 4]


def test_cores_are_read_once(tree: Path) -> None:
    file = rust(tree, "fn a() {}", "let cores = std::thread::available_parallelism();")
    assert [found.line for found in tidy.cores([file])] == [2]


def test_the_model_names_no_calls(tree: Path) -> None:
    lines = ['let name = "cuInit";', "#[cfg(test)]", 'let name = "cuInit";']
    (tree / "crates" / "model" / "src").mkdir(parents=True)
    model = tree / "crates" / "model" / "src" / "lib.rs"
    model.write_text("\n".join(lines) + "\n")
    assert [(found.path, found.line) for found in tidy.call_names([model, rust(tree, *lines)])] == [
        ("crates/model/src/lib.rs", 1)
    ]


def test_versions_stand_in_the_workspace(tree: Path) -> None:
    manifest = (
        '[dependencies]\na = "1"\nb = { workspace = true }\n[target."cfg(x)".dev-dependencies]\nc = { version = "2" }\n'
    )
    (tree / "crates" / "one" / "Cargo.toml").write_text(manifest)
    assert [found.what.partition(":")[0] for found in tidy.versions()] == ["a", "c"]


def test_the_engine_and_the_devices_do_not_know_each_other(tree: Path) -> None:
    def depends(crate: str, line: str) -> None:
        folder = tree / "crates" / crate
        folder.mkdir(exist_ok=True)
        (folder / "Cargo.toml").write_text(line + " = { workspace = true }\n")

    for crate in tidy.APART:
        depends(crate, "[dependencies]\noutboard-device")
    assert list(tidy.apart()) == []
    depends("soft", "[dev-dependencies]\noutboard-session")
    assert [found.path for found in tidy.apart()] == ["crates/soft/Cargo.toml"]


def test_numbers_agree(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "a.md").write_text("Needs Rust 1.88 or later.\n")
    (tree / "b.toml").write_text('version = "188"\n')
    row = ("a.md", r"Rust ([\d.]+)", "b.toml", r'version = "([\d.]+)"')
    monkeypatch.setattr(tidy, "NUMBERS", [row])
    assert list(tidy.numbers()) == []
    (tree / "b.toml").write_text('version = "1.90"\n')
    assert len(list(tidy.numbers())) == 1
    (tree / "b.toml").write_text("")
    assert len(list(tidy.numbers())) == 1


def test_what_the_command_links_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(tidy.large()) == []
    monkeypatch.setattr(tidy, "LARGE", {"clap", "nobody"})
    assert [found.what.split(" ")[0] for found in tidy.large()] == ["clap"]


@pytest.mark.parametrize(
    ("licence", "permitted"),
    [
        ("MIT", True),
        ("MIT/Apache-2.0", True),
        ("GPL-3.0 OR MIT", True),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", True),
        ("GPL-3.0", False),
        ("MIT AND GPL-3.0", False),
        ("", False),
    ],
)
def test_licences(licence: str, permitted: bool) -> None:
    assert tidy.is_permitted(licence) == permitted


def test_a_crate_in_two_versions_is_found(tree: Path) -> None:
    package = '[[package]]\nname = "{}"\nversion = "{}"\n'
    (tree / "Cargo.lock").write_text("".join(package.format(name, v) for name in ["one", "syn"] for v in "12"))
    assert [found.what for found in tidy.twice()] == ["2 versions of one"]


def test_each_module_with_unsafe_is_named(tree: Path) -> None:
    """ARCHITECTURE.md's table says which modules of a crate have unsafe; comments and tests do not count."""
    rust(tree, "// unsafe in a comment", "fn a() { unsafe { b() } }")
    tests = tree / "crates" / "one" / "src" / "tests.rs"
    tests.write_text("unsafe {}\n")
    files = [tests.with_name("lib.rs"), tests]
    assert {crate: dict(modules) for crate, modules in tidy.unsafe_of(files).items()} == {"one": {"lib": 1}}
    table = tree / "ARCHITECTURE.md"
    table.write_text("| `one` | contents | none |\n")
    assert [one.what for one in tidy.unsafe_is_named(files)] == [
        "the row of `one` does not name `lib`, which has unsafe"
    ]
    table.write_text("| `one` | contents | `lib`: calls |\n")
    assert list(tidy.unsafe_is_named(files)) == []


def test_the_first_page_of_the_specification_agrees_with_its_sections(tree: Path) -> None:
    page = "# Promises\n\n| At most 1.5 s and 20 of 4,000 | [Two words](#two-words) |\n\n## Two words\n\n"
    specification = tree / "SPECIFICATION.md"
    specification.write_text(page + "| it | 1.5 s, 20, 4,000 |\n")
    assert list(tidy.one_page()) == []
    specification.write_text(page + "| it | 11.5 s, 20, 4,000 |\n")
    assert [(one.line, one.what) for one in tidy.one_page()] == [(3, "1.5 is not in the section two-words")]


def test_functions_fit_a_screen(tree: Path) -> None:
    body = ["    let _ = 0;"] * 69
    fits = rust(tree, "fn fits() {", *body[1:], "}", "fn short() {}")
    assert list(tidy.long_functions([fits])) == []
    inner = ["impl A {", "    pub(crate) fn long(", "        a: u32,", "    ) {", *body, "    }", "}"]
    assert [(one.line, one.what) for one in tidy.long_functions([rust(tree, *inner)])] == [
        (2, "long has 73 lines, 70 at most")
    ]


def test_a_module_in_several_files_is_a_folder(tree: Path) -> None:
    file = rust(tree, "mod a;")
    beside = file.with_name("a.rs")
    beside.touch()
    assert list(tidy.second_styles([file, beside])) == []
    (file.parent / "a").mkdir()
    assert [one.what for one in tidy.second_styles([file, beside])] == ["belongs to a/mod.rs"]

"""The page and the pictures that are made from results."""

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

import paper
import paper_plots
import svg
from suite import ROOT

MACHINE = {
    "date_utc": "2026-01-01T00:00:00Z",
    "commit": "abc",
    "cores": 16,
    "gpus": [{"name": "NVIDIA Test", "driver_version": "1.2"}],
    "packages": {"torch": "2.11.0"},
}
SVG = "{http://www.w3.org/2000/svg}"


def timed(modes, ms):
    entries = {mode: {"status": "ok", "median_ms": ms * (n + 1)} for n, mode in enumerate(modes)}
    for n, mode in enumerate(modes):
        if "local" in modes and mode != "local":
            entries[mode]["ratio_to_local"] = float(n + 1)
    return entries


def cases(modes):
    skipped = {mode: {"status": "skip", "error": "not installed: diffusers"} for mode in modes}
    return {
        "one": {"title": "Model <A>", "group": "inference", "modes": timed(modes, 2.5)},
        "two": {"title": "Model B | C", "group": "training", "modes": timed(modes, 40.0)},
        "sd": {"title": "Diffusion", "group": "inference", "modes": skipped},
    }


def results():
    parts = {}
    for name, modes in (
        ("figure6", paper.FIGURE6_MODES),
        ("figure7", paper.FIGURE7_MODES),
        ("table5", paper.TABLE5_MODES),
    ):
        parts[name] = {"machine": MACHINE, "modes": list(modes), "cases": cases(modes), "not_run": []}
    split = {"whole_us": 30.0, "send_us": 2.0, "wait_us": 25.0, "client_us": 3.0, "seen_by_program_us": 31.0}
    remote = [mode for mode in paper.FIGURE3_MODES if mode != "local"]
    calls = {
        "launch": {"title": "LaunchKernel", "local_us": 4.0, "modes": dict.fromkeys(remote, split)},
        "broken": {"title": "GetDevice", "modes": {}, "error": "shm: the worker ended"},
    }
    parts["figure3"] = {"machine": MACHINE, "calls": calls, "not_run": ["mem_alloc"]}
    found = {
        "status": "ok",
        "calls": {"async": 414, "local": 937, "sync": 4},
        "ms": {"async": 0.5, "local": 0, "sync": 1},
    }
    failed = {"status": "skip", "error": "not installed: diffusers"}
    parts["table2"] = {
        "machine": MACHINE,
        "steps": 20,
        "cases": {"one": {"title": "Model A", "modes": {"tcp:or": found, f"tcp:{paper.BEST}": failed}}},
    }
    return {"format": 1, "parts": parts}


def test_page_and_pictures(tmp_path):
    (tmp_path / "results").mkdir()
    source, page = tmp_path / "results" / "r.json", tmp_path / "remoting.md"
    source.write_text(json.dumps(results()))
    assert paper_plots.main([str(source), str(page)]) == 0
    text = page.read_text()
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert [p.rpartition("/")[2] for p in pictures] == ["figure3.svg", "figure6.svg", "figure7.svg", "table5.svg"]
    for picture in pictures:
        ElementTree.parse(tmp_path / picture)
    assert "[results/r.json](results/r.json)" in text
    # The wait of 25 us holds the 4 us of the call itself.
    assert "| LaunchKernel | 4.00 | 30.0 (4.00 + 21.0 + 2.00 + 3.00)" in text
    assert "shm: the worker ended" in text and "Not measured, because the time was up: mem_alloc." in text
    assert "| Model A | OR alone | 414 | 937 | 4 | 1,355 |" in text
    assert "skip: not installed: diffusers" in text
    assert "NVIDIA Test (driver 1.2), 16 cores, torch 2.11.0, 2026-01-01T00:00:00Z, commit abc" in text
    # Nothing in a cell may end the cell.
    for line in text.splitlines():
        if line.startswith("| Model B"):
            assert line.startswith("| Model B / C, training |")


def test_parts_that_are_not_there_are_said(tmp_path):
    source, page = tmp_path / "r.json", tmp_path / "remoting.md"
    source.write_text(json.dumps({"format": 1, "parts": {}}))
    assert paper_plots.main([str(source), str(page)]) == 0
    assert page.read_text().count("Not measured yet.") == 5


def test_results_that_cannot_be_read(tmp_path, capsys):
    page = tmp_path / "docs" / "remoting.md"
    (tmp_path / "r.json").write_text("nonsense")
    for source in (tmp_path / "missing.json", tmp_path / "r.json"):
        assert paper_plots.main([str(source), str(page)]) == 1
        assert str(source) in capsys.readouterr().err
    assert not page.exists()


def test_the_committed_page_is_what_the_committed_results_say():
    source, page = ROOT / "docs" / "results" / "paper-remoting.json", ROOT / "docs" / "remoting.md"
    if not source.exists():
        assert not page.exists()
        return
    text, pictures = paper_plots.document(json.loads(source.read_text()), "results/paper-remoting.json", "remoting")
    assert page.read_text() == text, "run make paper-remoting-plots"
    for name, picture in pictures.items():
        assert (page.with_suffix("") / name).read_text() == picture, "run make paper-remoting-plots"


def test_bars_are_as_tall_as_their_values():
    picture = svg.chart(
        "t", [svg.Panel("p", [svg.Bar("a", [(1.0, "red"), (2.0, "blue")]), svg.Bar("b", [(6.0, "red")])])], [], 1, "u"
    )
    rects = {}
    for rect in ElementTree.fromstring(picture).iter(f"{SVG}rect"):
        rects.setdefault(rect.get("fill"), []).append(float(rect.get("height")))
    assert rects["red"][1] == pytest.approx(6 * rects["red"][0], rel=0.01)
    assert rects["blue"][0] == pytest.approx(2 * rects["red"][0], rel=0.01)


@pytest.mark.parametrize(
    ("value", "top"), [(0.7, 0.8), (1.0, 1.0), (1.3, 1.5), (9.0, 10.0), (87.0, 100.0), (12345.0, 15000.0), (1e-9, 1e-9)]
)
def test_axes_end_at_round_numbers(value, top):
    assert svg.nice(value) == pytest.approx(top)

"""Memory used by program and kernels: a launch pays only for the pages that changed, whatever
preceded it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from harness import TEST_PROGRAMS, Server

PROGRAM = TEST_PROGRAMS / "touched_by_both.py"
HELD = TEST_PROGRAMS / "held_launches.py"
POLLED = TEST_PROGRAMS / "polled_words.py"
COPIES = TEST_PROGRAMS / "mirrored_copies.py"
# Cases of mirrored_copies.py that memory which both sides share does not have.
OF_MIRRORS = ["batched", "freed", "captured", "again", "last"]
PAGE_BYTES = 4096
# Memory of kernel_words.py.
WORDS_BYTES = 64 * PAGE_BYTES
FEW, MANY = 50, 250
UNCHANGED = [
    "none",
    "pinned",
    "stale_word",
    "stale_words",
    "stale_words_stream",
    "stale_words_joined",
    "mapped",
    "registered",
    "managed",
    "freed",
    "forked",
    "unmapped",
    "little_lockable",
]
CHANGED = ["mapped_written", "registered_written", "managed_written"]


def figures(server: Server, link: str, folder: Path, history: str, launches: int, **env: str) -> dict[str, int]:
    """Returns the costs of mirrors in a run; empty if there was no mirror."""
    stats = folder / f"{launches}.json"
    env["OUTBOARD_STATS"] = str(stats)
    done = server.run(link, sys.executable, PROGRAM, history, str(launches), env=env)
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr
    return json.loads(stats.read_text()).get("mirrors", {})


def per_launch(server: Server, link: str, folder: Path, history: str, figure: str) -> float:
    few, many = (figures(server, link, folder, history, launches) for launches in (FEW, MANY))
    if many and not many["tracked"]:
        pytest.skip("this kernel does not say which pages were written")
    return (many.get(figure, 0) - few.get(figure, 0)) / (MANY - FEW)


@pytest.mark.parametrize("history", UNCHANGED)
def test_where_nothing_changed_nothing_is_compared_or_sent(
    server: Server, link: str, tmp_path: Path, history: str
) -> None:
    assert per_launch(server, link, tmp_path, history, "compared_bytes") == 0
    # What the history changed goes as words, or as pages while one thread alone has looked.
    sent = per_launch(server, link, tmp_path, history, "sent_bytes") * (MANY - FEW)
    assert abs(sent) <= 2 * PAGE_BYTES


@pytest.mark.parametrize("history", [*UNCHANGED[:6], "freed"])
def test_memory_that_work_no_longer_names_is_not_looked_at(
    server: Server, link: str, tmp_path: Path, history: str
) -> None:
    # Other calls may look once more for launches that were held back.
    looks = [per_launch(server, link, tmp_path, history, figure) for figure in ("looks", "held")]
    assert abs(sum(looks)) < 0.5


@pytest.mark.smoke
@pytest.mark.parametrize("history", CHANGED)
def test_a_page_that_changed_is_one_page(server: Server, link: str, tmp_path: Path, history: str) -> None:
    compared = per_launch(server, link, tmp_path, history, "compared_bytes")
    if link == "shm" and not history.startswith("registered"):
        assert compared == 0, "shared memory has no mirror"
        return
    # The page that the program wrote, and at times the one that a kernel wrote before; less where launches
    # share a look.
    assert compared <= 2 * PAGE_BYTES
    assert per_launch(server, link, tmp_path, history, "sent_bytes") <= PAGE_BYTES


@pytest.mark.parametrize(("apart", "most"), [(4, 1 / 16), (8, 1 / 8), (64, 1 / 8), (4096, 1 / 8)])
def test_words_that_a_kernel_wrote_come_in_few_messages(
    server: Server, link: str, tmp_path: Path, apart: int, most: float
) -> None:
    """A page of which every second word changed took 512 messages."""
    stats, rounds = tmp_path / "stats.json", 3
    command = [sys.executable, TEST_PROGRAMS / "kernel_words.py", str(apart), str(rounds)]
    done = server.run(link, *command, env={"OUTBOARD_STATS": str(stats)})
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr
    mirrors = json.loads(stats.read_text())["mirrors"]
    assert mirrors["received_bytes"] == rounds * WORDS_BYTES // (apart // 4)
    assert 0 < mirrors["received"] / rounds <= most * WORDS_BYTES / PAGE_BYTES


def test_work_after_a_host_function_sees_what_it_wrote(server: Server, link: str, tmp_path: Path) -> None:
    figures(server, link, tmp_path, "host_function", FEW)


def test_memory_that_was_mapped_over_is_told_to_the_server(server: Server, link: str, tmp_path: Path) -> None:
    figures(server, link, tmp_path, "mapped_over", FEW)


@pytest.mark.parametrize("history", [*UNCHANGED[4:], *CHANGED, "mapped_over"])
def test_the_results_are_right_where_the_kernel_does_not_tell(
    server: Server, link: str, tmp_path: Path, history: str
) -> None:
    found = figures(server, link, tmp_path, history, FEW, OUTBOARD_COMPARE="1")
    assert not found or found["tracked"] == 0


@pytest.mark.parametrize("compare", ["", "1"])
def test_threads_and_kernels_on_the_same_pages(server: Server, link: str, compare: str) -> None:
    env = {"OUTBOARD_COMPARE": compare} if compare else {}
    done = server.run(link, sys.executable, PROGRAM.with_name("touched_by_threads.py"), "2", env=env)
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr


@pytest.mark.parametrize("history", ["given_up", "moved", "protected"])
def test_pages_that_the_program_takes_away_are_right_or_an_error(
    server: Server, link: str, tmp_path: Path, history: str
) -> None:
    """madvise(MADV_DONTNEED) makes zeros for both sides; where a kernel's word cannot arrive, the wait fails."""
    figures(server, link, tmp_path, history, 1)


@pytest.mark.parametrize("compare", ["", "1"])
def test_what_was_written_before_pages_could_not_be_read_is_sent_later(
    server: Server, link: str, tmp_path: Path, compare: str
) -> None:
    env = {"OUTBOARD_COMPARE": compare} if compare else {}
    few, many = (figures(server, link, tmp_path, "hidden", launches, **env)["compared_bytes"] for launches in (50, 250))
    assert compare or few == many, "pages that were read again are not read any more"


@pytest.mark.parametrize("history", ["registered_written", "unmapped", "given_up", "moved", "protected", "hidden"])
def test_registered_memory_is_read_where_a_sandbox_refuses_to_copy_it(server: Server, link: str, history: str) -> None:
    by = PROGRAM.with_name("without_process_vm.py")
    done = server.run(link, sys.executable, by, sys.executable, PROGRAM, history, "4")
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr


@pytest.mark.parametrize("what", ["read", "read_by_two", "reset"])
def test_launches_that_share_a_look_read_what_was_written_before_each(
    server: Server, link: str, tmp_path: Path, what: str
) -> None:
    stats = tmp_path / "stats.json"
    done = server.run(link, sys.executable, HELD, what, env={"OUTBOARD_STATS": str(stats)})
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr
    assert json.loads(stats.read_text())["mirrors"]["held"] > 0


@pytest.mark.smoke
def test_the_bytes_of_a_copy_from_a_mirror_cross_once(server: Server, link: str, tmp_path: Path) -> None:
    if link == "shm":
        pytest.skip("shared memory has no mirror")
    stats = tmp_path / "stats.json"
    done = server.run(link, sys.executable, COPIES, "loader", env={"OUTBOARD_STATS": str(stats)})
    sent, *rest = done.stdout.splitlines()
    assert (rest, done.returncode) == (["right"], 0), done.stderr
    assert 1 <= float(sent) <= 1.1
    assert json.loads(stats.read_text())["mirrors"]["copied_bytes"] > 0


@pytest.mark.parametrize("compare", ["", "1"])
@pytest.mark.parametrize(
    "what",
    ["changed", "written", "brought", "kept", "late", "polled", "hidden", "duplex", "threads", *OF_MIRRORS],
)
def test_copies_from_a_mirror_are_right(server: Server, link: str, tmp_path: Path, what: str, compare: str) -> None:
    if link == "shm" and what in OF_MIRRORS:
        pytest.skip("shared memory has no mirror")
    stats = tmp_path / "stats.json"
    env = {"OUTBOARD_STATS": str(stats)} | ({"OUTBOARD_COMPARE": compare} if compare else {})
    done = server.run(link, sys.executable, COPIES, what, env=env)
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr
    # Where another copy into the memory is under way, or it is read during the call, the program's bytes are sent.
    if link == "tcp" and what not in ("brought", "batched", "last"):
        assert json.loads(stats.read_text())["mirrors"]["copied_bytes"] > 0


def test_launches_that_are_held_are_sent_though_no_call_follows(server: Server, link: str) -> None:
    if link != "shm":
        pytest.skip("a program sees what kernels write to a mirror when it waits")
    done = server.run(link, sys.executable, HELD, "polled")
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr


def test_a_kernel_that_polls_sees_the_word_at_the_next_call(server: Server, link: str) -> None:
    done = server.run(link, sys.executable, POLLED)
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stdout + done.stderr

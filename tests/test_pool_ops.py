"""What operators see of a pool over time: the audit."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import OUTBOARD, ROOT
from pool_boxes import Boxes
from test_pool import Pool, until

sys.path.insert(0, str(ROOT / "python"))

from outboard import pool as client

CLAIMS = 60


def replay(entries: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Plays an audit again: returns who has which GPU in the end, and fails if one is given twice."""
    held: dict[str, tuple[int, int]] = {}
    assert [entry["number"] for entry in entries] == list(range(1, len(entries) + 1))
    for entry in entries:
        for gpu in entry["gpus"]:
            holding = (entry["lease"], gpu["epoch"])
            if entry["what"] == "given":
                assert gpu["uuid"] not in held, entry
                held[gpu["uuid"]] = holding
            if entry["what"] == "taken":
                assert held.pop(gpu["uuid"]) == holding and entry["cause"] is not None, entry
    return held


def test_the_audit_of_a_random_run_agrees_with_itself_over_a_restart(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    boxes = Boxes(pool.url, 2, 8)
    asked = client.Pool(pool.url)
    until(lambda: [gpu["state"] for gpu in asked.list()["gpus"]] == ["free"] * 16)
    chance = random.Random(7)
    leases: list[client.Lease] = []
    for number in range(CLAIMS):
        try:
            holder = chance.choice(["alice", "bob"])
            # Some are never given back: their deadlines end them.
            lease = asked.claim(chance.randint(1, 5), wait_s=0, owner=holder, term_s=60 if number % 4 else 1)
            leases.append(lease)
        except client.Busy:
            for _ in range(min(2, len(leases))):
                asked.release(leases.pop(chance.randrange(len(leases))))
        if number == CLAIMS // 2:
            asked.drain("box1", "repair")
            before = asked.audit()
            boxes.stop()
            pool.manager.kill()
            pool.manager.wait()
            pool.manager = pool.start_manager(pool.url.removeprefix("http://"))
            boxes = Boxes(pool.url, 2, 8)
            asked.drain("box1", None)
    view = asked.audit()
    held = replay(view["entries"])
    leased = {gpu["uuid"]: (gpu["lease"], gpu["epoch"]) for gpu in asked.list()["gpus"] if gpu["lease"]}
    # Between both questions deadlines may have ended leases.
    later = asked.audit(view["revision"])["entries"]
    for gpu in [gpu["uuid"] for entry in later if entry["what"] == "taken" for gpu in entry["gpus"]]:
        held.pop(gpu)
    assert held == leased
    for lease in asked.list()["leases"]:
        asked.release(lease["lease"])
    until(lambda: all(gpu["state"] == "free" for gpu in asked.list()["gpus"]))
    view = asked.audit()
    assert replay(view["entries"]) == {} and view["dropped"] == 0
    assert {"released", "expired"} <= {entry["cause"] for entry in view["entries"]}
    # It goes on where it was, and what was before the restart is the same.
    assert view["entries"][: before["revision"]] == before["entries"]
    assert asked.audit(before["revision"])["entries"] == view["entries"][before["revision"] :]
    assert asked.audit(view["revision"])["entries"] == []
    with pytest.raises(client.Gone, match="older copy"):
        asked.audit(view["revision"] + 1)
    # The command says the same, and leaves out what does not suit.
    assert pool.ask("audit")["entries"] == view["entries"]
    bobs = pool.ask("audit", "--holder", "bob", "--since", "1d")["entries"]
    assert bobs == [entry for entry in view["entries"] if entry["holder"] == "bob"] != []
    gpu = view["entries"][0]["gpus"][0]["uuid"]
    assert all(gpu in [it["uuid"] for it in entry["gpus"]] for entry in pool.ask("audit", "--gpu", gpu)["entries"])
    argv = [OUTBOARD, "pool", "audit", "--pool", pool.url, "--after", str(before["revision"] - 1)]
    text = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout
    assert " drained   box box1; by anyone; repair\n" in text and " ended " in text, text
    boxes.stop()
    pool.stop()


def test_the_audit_names_the_token_of_those_who_do_something(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    create = [OUTBOARD, "token", "create", "--tokens", tokens]
    texts = {
        name: subprocess.run([*create, name], check=True, capture_output=True, text=True).stdout
        for name in ("alice", "operator.carol", "box.box0")
    }
    pool = Pool(tmp_path, "--tokens", str(tokens))
    boxes = Boxes(pool.url, 1, 2, texts["box.box0"])
    alice, carol = (client.Pool(pool.url, token=texts[name]) for name in ("alice", "operator.carol"))
    until(lambda: [gpu["state"] for gpu in alice.list()["gpus"]] == ["free"] * 2)
    own, other = alice.claim(), alice.claim()
    alice.release(own)
    carol.release(other)
    carol.taint(own.gpus[0], "odd")
    until(lambda: len(alice.audit()["entries"]) == 7)
    told = [(entry["what"], entry["lease"], entry["by"]) for entry in alice.audit()["entries"]]
    # Boxes confirm when they do.
    assert sorted(told, key=str) == sorted(
        [
            *(("given", lease.number, None) for lease in (own, other)),
            *((what, own.number, "alice") for what in ("ended", "taken")),
            *((what, other.number, "operator.carol") for what in ("ended", "taken")),
            ("tainted", None, "operator.carol"),
        ],
        key=str,
    )
    with pytest.raises(client.PoolError, match="a token is needed"):
        client.Pool(pool.url).audit()
    boxes.stop()
    pool.stop()

"""Programs that are placed by their recordings: only in boxes whose network is good enough, as the pool knows it and as
the program's machine measures it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import OUTBOARD, ROOT, start_server
from test_pool import GPUS_A_BOX, Pool, post, until

sys.path.insert(0, str(ROOT / "python"))

from outboard import pool as client

# Within 1000 % of its local time it needs round trips of at most 446 ms with 1 Gbps, 364 ms with 100 Mbps.
RECORDING = ROOT / "recordings" / "h200" / "sd_unet_b1.trace"
FOR = ["--for", str(RECORDING), "--budget", "1000%"]
FAR = "rtt=800ms,bandwidth=10Gbps"
# Those of crates/pool/src/limits.rs and crates/wire/src/network.
NEEDS_MAX, RTT_NS_MAX = 32, 10_000_000_000


class Networks(Pool):
    """A box that measures its network, one that is told a slow one, and one that knows nothing of it."""

    links: dict[str, list[str]]

    def box_options(self, name: str) -> list[str]:
        return self.links[name]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Networks]:
    folder = tmp_path_factory.mktemp("server")
    probed = start_server(folder)
    pool = Networks(tmp_path_factory.mktemp("pool"))
    pool.links = {"far": ["--pool-link", FAR], "near": ["--pool-probe", probed.urls["tcp"]], "dark": []}
    for name in pool.links:
        pool.start_box(name)
    until(lambda: pool.free() == 3 * GPUS_A_BOX)
    yield pool
    pool.stop()
    assert probed.stop() == 0


def command(pool: Pool, *arguments: str) -> tuple[int, str]:
    argv = [str(OUTBOARD), *arguments, "--pool", pool.url]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_a_program_is_placed_where_the_network_is_good_enough(pool: Networks) -> None:
    links = {of["box"]: of["link"] for of in pool.ask("list")["boxes"]}
    assert links["near"]["source"] == "measured" and links["near"]["rtt_ns"] > 0
    assert links["far"] == {"rtt_ns": 800_000_000, "bits_per_s": 10_000_000_000, "source": "told"}
    assert links["dark"] is None
    listed = command(pool, "pool", "list")[1]
    assert "box far: its network has 800ms and 10Gbps, as it says" in listed and "box near: its network has" in listed
    # The far box is the first, and as empty as the others.
    first = pool.run("--same", "box", "--fit", "first", *FOR)
    gpus = {gpu["uuid"]: gpu["box"] for gpu in pool.ask("list")["gpus"]}
    assert [gpus[gpu] for gpu in first.gpus()] == ["near"]
    second = pool.run("--fit", "spread", *FOR)
    assert [gpus[gpu] for gpu in second.gpus()] == ["near"]
    # It waits for such a box, although others are free.
    code, said = pool.run("--no-wait", *FOR).outcome()
    assert code == 1 and "no such GPU is free now" in said, said
    assert first.finish().startswith("right") and second.finish().startswith("right")
    until(lambda: pool.free() == 3 * GPUS_A_BOX)
    lease = json.loads(command(pool, "pool", "claim", "--json", *FOR)[1])
    assert [of["name"] for of in lease["boxes"]] == ["near"]
    command(pool, "pool", "release", str(lease["lease"]))
    until(lambda: pool.free() == 3 * GPUS_A_BOX)


def test_a_network_that_nobody_has_is_an_error(pool: Networks) -> None:
    code, said = pool.run("--gpus", "3", *FOR).outcome()
    assert code == 1 and "3 GPUs behind a network that the program needs are asked for, and there are 2" in said, said
    assert "the box near has the shortest round trip" in said and "the network of 1 box is not known" in said, said
    never = RECORDING.with_name("linear_items.trace")
    code, said = command(pool, "pool", "claim", "--for", str(never), "--budget", "0%")
    assert code == 1 and "no network keeps the program" in said, said
    code, said = command(pool, "pool", "claim", "--for", str(ROOT / "README.md"))
    assert code == 1 and "README.md" in said, said
    assert pool.free() == 3 * GPUS_A_BOX
    argv = [str(OUTBOARD), "run", "--for", str(RECORDING), "--", "true"]
    assert "--pool" in subprocess.run(argv, capture_output=True, text=True, timeout=60).stderr
    argv = [str(OUTBOARD), "serve", "--pool", pool.url, "--pool-link", "rtt=20us"]
    assert "has a bandwidth" in subprocess.run(argv, capture_output=True, text=True, timeout=60).stderr


def test_the_network_of_the_programs_machine_counts_too(pool: Networks) -> None:
    code, said = pool.run("--emulate", "rtt=150ms,bandwidth=10Gbps", *FOR).outcome()
    assert code == 1 and "between this machine and the box near is not good enough" in said, said
    until(lambda: pool.free() == 3 * GPUS_A_BOX)


def test_claims_over_http_have_limits(pool: Networks) -> None:
    need = {"rtt_ns_max": 150_000_000, "bits_per_s_min": 1_000_000}
    wrong = [
        [need] * (NEEDS_MAX + 1),
        [{**need, "rtt_ns_max": RTT_NS_MAX + 1}],
        [{**need, "rtt_ns_max": -1}],
        [{**need, "bits_per_s_min": 0}],
        [{**need, "rtt": 1}],
        [{"rtt_ns_max": 1}],
        "near",
    ]
    for links in wrong:
        claim = {"uid": "w", "host": "host", "gpus": 1, "links": links}
        status, said = post(pool, "/v1/claims", {"claim": claim, "wait": False})
        assert status == 400, (links, said)
    with client.Pool(pool.url).claim(2, wait_s=0, links=[(1, 10**12), (150_000_000, 1_000_000)]) as lease:
        assert [of["name"] for of in lease.boxes] == ["near"]
    until(lambda: pool.free() == 3 * GPUS_A_BOX)
    with pytest.raises(client.PoolError) as refused:
        client.Pool(pool.url).claim(wait_s=0, links=[(1, 1_000_000)])
    assert refused.value.status == 422, refused.value


def test_attached_gpus_are_where_the_network_is_good_enough(pool: Networks) -> None:
    attached = pool.ask("attach", "hostx", "--gpus", "2", *FOR)
    assert attached["boxes"] == ["near"] and attached["claim"]["links"]
    more = pool.ask("attach", "hostx", "--fit", "spread")
    assert more["lease"] == attached["lease"] and len(more["gpus"]) == 3
    code, said = command(pool, "pool", "attach", "hostx", "--no-wait", *FOR)
    assert code == 1 and "no such GPU is free now" in said, said
    for gpu in more["gpus"]:
        pool.ask("detach", gpu)
    until(lambda: pool.free() == 3 * GPUS_A_BOX)


def test_a_box_whose_network_cannot_be_measured_serves_all_the_same(pool: Networks, tmp_path: Path) -> None:
    pool.links["lost"] = ["--pool-probe", "tcp://127.0.0.1:1"]
    pool.start_box("lost")
    until(lambda: pool.free() == 4 * GPUS_A_BOX)
    assert "the network of this box is not known" in (pool.folder / "lost.log").read_text()
    [lost] = [of for of in pool.ask("list")["boxes"] if of["box"] == "lost"]
    assert lost["link"] is None and "no server at tcp://127.0.0.1:1" in lost["link_fails"], lost
    code, said = command(pool, "pool", "list")
    assert code == 0 and "box lost: its network could not be measured: no server at" in said, said

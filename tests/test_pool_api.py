"""The pool's HTTP API: its description, claims, watches, metrics, limits; and the Python client."""

from __future__ import annotations

import http.client
import json
import re
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from authority import Authority
from harness import OUTBOARD, ROOT
from pool_boxes import MODEL, Boxes
from test_pool import Pool, until

sys.path.insert(0, str(ROOT / "python"))

from outboard import pool as client

BOXES, GPUS = 8, 64
# Those of crates/manager/src/limits.rs.
HEAD_BYTES_MAX, BODY_BYTES_MAX = 8 << 10, 256 << 10
WATCHERS_MAX, CONNECTIONS_MAX = 1_024, 4_096


@pytest.fixture(scope="module", autouse=True)
def many_files() -> None:
    """Lets this process have as many connections as the manager. That one sees to itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS_MAX
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard) if hard >= 0 else wanted, hard))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    pool = Pool(tmp_path_factory.mktemp("pool"))
    boxes = Boxes(pool.url, BOXES, GPUS)
    yield pool
    boxes.stop()
    pool.stop()


@pytest.fixture
def pool(made: Pool) -> Pool:
    until(lambda: [gpu["state"] for gpu in ask(made, "GET", "/v1/pool")[1]["gpus"]] == ["free"] * BOXES * GPUS)
    return made


def ask(pool: Pool, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    parts = urlsplit(pool.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=40)
    connection.request(method, path, body if body is None or isinstance(body, bytes) else json.dumps(body), headers)
    answer = connection.getresponse()
    said = answer.read()
    connection.close()
    kind = answer.getheader("Content-Type") or ""
    return answer.status, json.loads(said) if kind.startswith("application/json") else said.decode()


def claim(uid: str, gpus: int = 1, **wishes: Any) -> dict[str, Any]:
    return {"claim": {"uid": uid, "host": "host", "gpus": gpus, **wishes}, "wait": False}


def mistakes(value: Any, schema: Any, document: Any, at: str = "") -> list[str]:
    """Returns where a value is not what a JSON schema says; fields that it does not name are mistakes, too."""
    if schema is True:
        return []
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")
        return mistakes(value, document["components"]["schemas"][name], document, at)
    found: list[str] = []
    for word in ("anyOf", "oneOf"):
        tries = [mistakes(value, one, document, at) for one in schema.get(word, [])]
        if tries and all(tries):
            found += min(tries, key=len)
    types = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(value, types[kind]) for kind in kinds):
        return [f"{at}: {value!r} is no {kinds}"]
    if ("enum" in schema and value not in schema["enum"]) or ("const" in schema and value != schema["const"]):
        found.append(f"{at}: {value!r} is none of {schema}")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        found.append(f"{at}: {value!r} is not like {schema['pattern']}")
    if isinstance(value, int) and value < schema.get("minimum", value):
        found.append(f"{at}: {value} is too small")
    if isinstance(value, dict) and "properties" in schema:
        found += [f"{at}: no {name}" for name in schema.get("required", []) if name not in value]
        found += [f"{at}: {name} is not described" for name in value if name not in schema["properties"]]
        for name in value.keys() & schema["properties"].keys():
            found += mistakes(value[name], schema["properties"][name], document, f"{at}.{name}")
    if isinstance(value, list):
        items = schema.get("prefixItems") or [schema.get("items", True)] * len(value)
        for number, (item, one) in enumerate(zip(value, items, strict=True)):
            found += mistakes(item, one, document, f"{at}[{number}]")
    return found


def test_each_route_is_described_as_it_answers(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    boxes = Boxes(pool.url, 2, 8)
    until(lambda: [gpu["state"] for gpu in ask(pool, "GET", "/v1/pool")[1]["gpus"]] == ["free"] * 16)
    status, document = ask(pool, "GET", "/openapi.json")
    assert status == 200 and document["openapi"] == "3.1.0"
    served = {
        it["operationId"]: (path, method, it) for path, of in document["paths"].items() for method, it in of.items()
    }
    # A route may change what others show: each name once, in this order.
    lease = ask(pool, "POST", "/v1/claims", claim("described", 2))[1]["granted"]["lease"]
    revision = ask(pool, "GET", "/v1/pool")[1]["revision"]
    attached = ask(pool, "POST", "/v1/claims", claim("attached", 1, attach=True))[1]["granted"]
    gpu = attached["boxes"][0]["grant"]["gpus"][0][0]
    names = {"lease": lease, "box": "box1", "uuid": gpu, "owner": "bob"}
    new = {"name": "new", "identity": "new", "instance": "new", "url": "tcp://192.0.2.99:1", "gpus": []}
    bodies: dict[str, Any] = {
        "claim": claim("other", 3, same="nvlink"),
        "drain": {"reason": "repair"},
        "taint": {"reason": "x", "broken": True},
        "detach": {"force": True},
        "quota": {"gpus": 3},
        "set_spares": {"gpus": 1, "per": "box"},
        "quotas": None,
        "spares": None,
        "audit": "holder=anyone",
        "history": None,
        "list": None,
        "tables": None,
        "lease": None,
        "grants": {},
        "watch": f"after={revision}",
        "hold": {"news": 99},
        "failed": {"box": "box1", "reason": "x"},
        "release": {},
        "join": new,
        "report": {"name": "new", "instance": "new", "incarnation": 1, "revision": 99, "gpus": []},
        "forget": {},
        "leader": None,
        "openapi": None,
        "metrics": None,
        "page": None,
        "page_rows": f"after={revision}",
        "page_script": None,
        "page_style": None,
        "page_drain": {"box": "box0", "action": "undrain"},
    }
    assert bodies.keys() == served.keys()
    for name, body in bodies.items():
        path, method, described = served[name]
        if name == "forget":
            names["box"] = "new"
        for parameter in described.get("parameters", []):
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", str(names[parameter["name"]]))
        if isinstance(body, str):
            assert mistakes(dict([body.split("=")]), parameters(described), document) == []
            path, body = f"{path}?{body}", None
        data = body
        if "requestBody" in described:
            [(form, content)] = described["requestBody"]["content"].items()
            assert mistakes(body, content["schema"], document) == []
            data = body if form == "application/json" else urlencode(body).encode()
        status, said = ask(pool, method.upper(), path, data)
        assert status in (200, 303), (name, said)
        [content] = described["responses"][str(status)]["content"].values()
        assert mistakes(said, content["schema"], document, name) == []
    # What is refused is described, too, and what is not there is refused.
    refused = document["components"]["schemas"]["PoolError"]
    for method, path, body, expected in (
        ("GET", "/v1/nothing", None, 404),
        ("GET", "/v1/claims", None, 404),
        ("DELETE", "/v1/pool", None, 404),
        ("POST", "/v1/boxes/%ff/drain", {"reason": "x"}, 404),
        ("POST", "/v1/claims", claim("unknown", sane="nvlink"), 400),
        ("POST", "/v1/claims", claim("minus", -1), 400),
        ("POST", "/v1/boxes/box1/drain", {"raeson": "x"}, 400),
        ("POST", "/v1/leases/-1/release", {}, 400),
        ("GET", "/v1/watch", None, 400),
        ("GET", "/v1/watch?after=x", None, 400),
        ("GET", "/v1/audit?gpu=x", None, 400),
        ("GET", "/v1/audit?after=99999999", None, 410),
        ("GET", "/v1/watch?after=1-99999999", None, 410),
        ("POST", "/v1/claims", claim("many", 512), 422),
    ):
        status, said = ask(pool, method, path, body)
        assert (status, mistakes(said, refused, document)) == (expected, []), said
    boxes.stop()
    pool.stop()


def parameters(described: Any) -> Any:
    query = [it for it in described["parameters"] if it["in"] == "query"]
    required = [it["name"] for it in query if it["required"]]
    return {"type": "object", "properties": {it["name"]: it["schema"] for it in query}, "required": required}


def test_a_claim_that_comes_again_has_its_lease_and_a_watch_tells_it_once(pool: Pool) -> None:
    revision = ask(pool, "GET", "/v1/pool")[1]["revision"]
    answers: list[Any] = []
    path = f"/v1/watch?after={revision}"
    waiting = threading.Thread(target=lambda: answers.append(ask(pool, "GET", path)))
    waiting.start()
    first = ask(pool, "POST", "/v1/claims", claim("u1", 2))
    assert ask(pool, "POST", "/v1/claims", claim("u1", 2)) == first and first[0] == 200
    assert ask(pool, "POST", "/v1/claims", claim("u1", 3))[0] == 409
    waiting.join(10)
    status, told = answers[0]
    lease = first[1]["granted"]["lease"]
    gpus = {uuid for of in first[1]["granted"]["boxes"] for uuid, _ in of["grant"]["gpus"]}
    seen = {(kind, event["name"]) for event in told["events"] for kind in event["object"]}
    assert status == 200 and {("lease", str(lease)), *(("gpu", gpu) for gpu in gpus)} <= seen
    # The same place again has the same changes; the end has none, for as long as is asked for.
    again = ask(pool, "GET", path)[1]
    assert [event["name"] for event in again["events"]] == [event["name"] for event in told["events"]]
    start = time.monotonic()
    quiet = ask(pool, "GET", f"/v1/watch?after={again['revision']}&wait_ms=300")[1]
    assert quiet == {"revision": again["revision"], "more": False, "events": []}
    assert 0.3 <= time.monotonic() - start < 5
    ask(pool, "POST", f"/v1/leases/{lease}/release", {})


def test_metrics_are_prometheus_and_each_gpu_is_there_once(pool: Pool) -> None:
    text = ask(pool, "GET", "/metrics")[1]
    assert re.search(r'outboard_pool_gpus\{state="free"\} 512\n', text)
    gpus = re.findall(r'^outboard_pool_gpu_info\{uuid="(GPU-[^"]*)",.*state="free"\} 1$', text, re.MULTILINE)
    assert len(gpus) == len(set(gpus)) == 512
    assert 'model="' + MODEL.replace('"', '\\"') + '"' in text
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here (Debian's prometheus)")
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def raw(pool: Pool, *pieces: bytes) -> bytes:
    """Sends bytes, and returns all that comes until the manager hangs up or is silent for a second."""
    parts = urlsplit(pool.url)
    said = b""
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as stream:
        try:
            for piece in pieces:
                stream.sendall(piece)
            stream.settimeout(1)
            while piece := stream.recv(1 << 16):
                said += piece
        except (ConnectionError, TimeoutError):
            pass
    return said


def crowd(pool: Pool, count: int) -> list[socket.socket]:
    """Connects many times. The manager takes many connections at once, which is faster."""
    parts = urlsplit(pool.url)
    streams = [socket.socket() for _ in range(count)]
    for number, stream in enumerate(streams):
        stream.setblocking(False)
        stream.connect_ex((parts.hostname or "", parts.port or 0))
        if number % 100 == 99:
            assert ask(pool, "GET", "/v1/leader")[0] == 200
    for stream in streams:
        stream.settimeout(10)
    return streams


def parted(said: bytes) -> tuple[int, str, Any]:
    """Returns the status, the head and the document of the only answer."""
    head, _, body = said.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode(), json.loads(body)


# Requests that are refused before they have come whole, and their statuses.
REFUSED = [
    (b"GET / HTTP/9.9\r\n\r\n", 400),
    (b"PRI * HTTP/2.0\r\n\r\n", 400),
    (b"\x00" * 64, 400),
    (b"GET /" + b"x" * HEAD_BYTES_MAX + b" HTTP/1.1\r\n\r\n", 431),
    (b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 40 + b"\r\n", 431),
    (b"POST /v1/claims HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1), 413),
    (b"POST /v1/claims HTTP/1.1\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000, 413),
    (b"POST /v1/claims HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
    (b"POST /v1/claims HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
    (b"POST /v1/quotas/x HTTP/1.1\r\nContent-Length: 10\r\nContent-Length: 8\r\n\r\n" + b'{"gpus":1}', 400),
]


@pytest.mark.parametrize(("request_bytes", "status"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_no_request_is_refused_with_its_status(pool: Pool, request_bytes: bytes, status: int) -> None:
    said = raw(pool, request_bytes)
    got, head, document = parted(said)
    assert (got, document["error"]) == (status, "wrong"), said
    assert document["text"] and "\r\nConnection: close" in head
    # What came before is answered, what comes after it is not: it may be a part of the request.
    around = raw(pool, b"GET /v1/leader HTTP/1.1\r\n\r\n", request_bytes, b"GET /v1/leader HTTP/1.1\r\n\r\n")
    statuses = re.findall(rb"HTTP/1.1 (\d+) ", around)
    assert statuses == [b"200", str(status).encode()], around


def test_requests_that_come_at_once_are_answered_in_their_order(pool: Pool) -> None:
    for count in (2, 3, 50, 1_000):
        asked = [f"GET /v1/leases/{number} HTTP/1.1\r\nHost: x\r\n\r\n" for number in range(90_000, 90_000 + count)]
        last = "GET /v1/leader HTTP/1.1\r\nConnection: close\r\n\r\n"
        began = time.monotonic()
        said = raw(pool, ("".join(asked) + last).encode()).decode()
        assert re.findall(r"HTTP/1.1 (\d+) ", said) == ["404"] * count + ["200"]
        assert re.findall(r"\b9\d{4}\b", said) == [str(number) for number in range(90_000, 90_000 + count)]
        assert time.monotonic() - began < 10
    # One that waits keeps its place; one of which a part has come waits for the rest.
    revision = ask(pool, "GET", "/v1/pool")[1]["revision"]
    watch = f"GET /v1/watch?after={revision}&wait_ms=200 HTTP/1.1\r\n\r\n".encode()
    said = raw(pool, watch + b"GET /v1/leader HTTP/1.1\r\n\r\nGET /v1/lea", b"der HTTP/1.1\r\n\r\n").decode()
    assert said.count("HTTP/1.1 200") == 3, said
    assert said.index('"revision"') < said.index('"incarnation"')


def test_a_body_says_one_thing_only(pool: Pool) -> None:
    asked = claim("once")["claim"]
    for body, why in (
        ([asked, False], "an object"),
        ({"claim": list(asked.values()), "wait": False}, ""),
        ({"claim": {**asked, "links": [[50_000, 1]]}}, "an object"),
        (json.dumps({"claim": asked}).replace('"gpus": 1', '"gpus": 1, "gpus": 4').encode(), "twice"),
        (b'{"claim": {"uid": "a", "host": "h", "gpus": 1}, "wait": false, "wait": true}', "twice"),
    ):
        status, said = ask(pool, "POST", "/v1/claims", body)
        assert (status, said["error"]) == (400, "wrong") and why in said["text"], said
    assert ask(pool, "POST", "/v1/quotas/x", [1])[0] == 400
    assert ask(pool, "GET", "/v1/pool")[1]["leases"] == []


def test_strangers_are_bounded_and_the_manager_goes_on(pool: Pool) -> None:
    deep = b"[" * 100_000
    head = b"POST /v1/claims HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(deep)
    assert raw(pool, head, deep).startswith(b"HTTP/1.1 400 ")
    for origin, expected in (("http://evil.example", 403), ("null", 403), (pool.url, 200)):
        status, said = ask(pool, "POST", "/v1/quotas/x", {"gpus": None}, Origin=origin)
        assert status == expected, said
    # Connections that ask for nothing end for others; those that watch have a number of their own.
    revision = ask(pool, "GET", "/v1/pool")[1]["revision"]
    request = f"GET /v1/watch?after={revision} HTTP/1.1\r\n\r\n".encode()
    idle, watchers = crowd(pool, CONNECTIONS_MAX - WATCHERS_MAX), crowd(pool, WATCHERS_MAX)
    for stream in watchers:
        stream.sendall(request)
    until(lambda: f"outboard_pool_watchers {WATCHERS_MAX}\n" in ask(pool, "GET", "/metrics")[1])
    assert ask(pool, "GET", f"/v1/watch?after={revision}")[0] == 429
    with pytest.raises(ConnectionError):
        idle[0].sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        time.sleep(0.1)
        idle[0].sendall(b"x")
        raise ConnectionError if idle[0].recv(1) == b"" else AssertionError
    # All of them are told of a change.
    ask(pool, "POST", "/v1/boxes/box0/drain", {"reason": "x"})
    ask(pool, "POST", "/v1/boxes/box0/drain", {"reason": None})
    assert all(stream.recv(12) == b"HTTP/1.1 200" for stream in watchers)
    for stream in [*idle, *watchers]:
        stream.close()
    until(lambda: "outboard_pool_watchers 0\n" in ask(pool, "GET", "/metrics")[1])


class Relay:
    """Passes connections on to a manager, until they are cut."""

    def __init__(self, port: int) -> None:
        self.port, self.streams = port, list[socket.socket]()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            near, _ = self.listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.port), timeout=60)
            except OSError:
                near.close()
                continue
            self.streams += [near, far]
            for come, go in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=(come, go), daemon=True).start()

    def pump(self, come: socket.socket, go: socket.socket) -> None:
        try:
            while piece := come.recv(1 << 16):
                go.sendall(piece)
            go.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def cut(self) -> None:
        for stream in self.streams:
            try:
                stream.shutdown(socket.SHUT_RDWR)
            except OSError:
                # It has ended by itself.
                stream.close()
        self.streams.clear()


def test_the_client_claims_watches_and_gives_back(pool: Pool) -> None:
    asked = client.Pool(pool.url)
    relay = Relay(urlsplit(pool.url).port or 0)
    events: list[client.Event] = []
    stop = threading.Event()
    revision = asked.list()["revision"]

    def watch() -> None:
        events.extend(client.Pool(relay.url).watch(revision, stop=stop))

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    with asked.claim(3, same="nvlink", term_s=2, owner="alice") as lease:
        # Who reads a grant can use its GPUs: logs do not have it.
        assert lease.boxes[0]["signed"] not in repr(lease)
        assert len(set(lease.gpus)) == 3 and lease.environment()["OUTBOARD_GPU"] == "tcp://192.0.2.0:4833"
        grants = Path(lease.environment()["OUTBOARD_GRANT_FILE"])
        assert grants.stat().st_mode & 0o777 == 0o600 and grants.read_text().startswith("tcp://192.0.2.0:4833 ")
        until(lambda: relay.streams != [])
        relay.cut()
        # Longer than the term: it is renewed.
        time.sleep(2.5)
        assert asked.lease(lease.number)["state"] == "granted" and not lease.is_over
        with pytest.raises(client.Busy, match="are not free now"):
            asked.claim(510, wait_s=0)
        with pytest.raises(client.PoolError, match="1 to 512 GPUs, not 513"):
            asked.claim(513)
        start = time.monotonic()
        with pytest.raises(client.Busy):
            asked.claim(511, wait_s=0.5)
        assert time.monotonic() - start > 0.5 and asked.list()["queue"] == []
    assert lease.is_over and not grants.exists()
    until(lambda: asked.lease(lease.number)["state"] == "over")
    asked.drain("box3", "repair")
    # The watch ends with the next change.
    until(lambda: any(event.name == "box3" for event in events))
    stop.set()
    asked.drain("box3", None)
    watching.join(30)
    states = [event.value["state"] for event in events if event.kind == "lease" and event.value]
    assert states[0] == "granted" and states[-1] == "over"
    assert [event.name for event in events if event.kind == "box"][-1] == "box3"
    assert {event.name for event in events if event.kind == "gpu"} > set(lease.gpus)
    again = [asked.claim(uid="mine", term_s=60) for _ in range(2)]
    assert again[0].number == again[1].number
    again[0].release()


def test_a_watch_that_is_too_old_is_told_to_list_again(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    asked = client.Pool(pool.url)
    watch = asked.watch(asked.list()["revision"])
    asked.quota("bob", 3)
    assert next(watch).value == {"owner": "bob", "gpus": 3, "used": 0}
    pool.manager.kill()
    pool.manager.wait()
    pool.manager = pool.start_manager(pool.url.removeprefix("http://"))
    with pytest.raises(client.Gone, match="gone: list again"):
        next(watch)
    pool.stop()
    with pytest.raises(client.Unreachable, match="does not answer"):
        client.Pool(pool.url, timeout_s=0.2).list()


def test_the_client_checks_the_manager_and_has_a_token(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, private = authority.sign("manager", "serverAuth", "IP:127.0.0.1")
    tokens = tmp_path / "tokens"
    create = [OUTBOARD, "token", "create", "--tokens", tokens]
    texts = {
        name: subprocess.run([*create, name], check=True, capture_output=True, text=True).stdout
        for name in ("alice", "operator.carol")
    }
    pool = Pool(tmp_path, "--certificate", str(certificate), "--key", str(private), "--tokens", str(tokens))
    with pytest.raises(client.PoolError, match="a token is needed"):
        client.Pool(pool.url, ca=authority.file).list()
    with pytest.raises(client.PoolError, match="certificate") as untrusted:
        client.Pool(pool.url, token=texts["alice"]).list()
    assert untrusted.value.kind == "untrusted"
    alice = client.Pool(pool.url, token=texts["alice"], ca=authority.file)
    assert alice.list()["gpus"] == []
    with pytest.raises(client.PoolError, match=r"names begin with operator\."):
        alice.quota("bob", 1)
    client.Pool(pool.url, token=texts["operator.carol"], ca=authority.file).quota("bob", 1)
    assert alice.quotas() == {"quotas": [{"owner": "bob", "gpus": 1, "used": 0}]}
    pool.stop()
    for wrong in ("", "localhost:1", "https://a:1?fingerprint=sha256:7", "http://a", "http://a:x", "ftp://a:1"):
        with pytest.raises(ValueError, match="manager"):
            client.Pool(wrong)

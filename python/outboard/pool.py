"""Asks a pool's manager for GPUs, and follows what happens in the pool.

    from outboard.pool import Gone, Pool

    pool = Pool("http://manager:4834")
    with pool.claim(gpus=2, model="H200") as lease:      # given back at the end, and renewed until then
        subprocess.run(["outboard", "run", "--", "python", "train.py"], env=lease.environment())

    revision = pool.list()["revision"]
    for event in pool.watch(revision):                   # goes on after a broken connection
        print(event.kind, event.name, event.value)

Documents are those of the manager's `GET /openapi.json`. Needs nothing but Python's own modules.
"""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

__all__ = ["Busy", "Change", "Event", "Gone", "Lease", "Pool", "PoolError", "Unreachable"]

ANSWER_S_MAX = 15
# The manager holds a claim for some seconds, and a watch for less than half a minute.
WAIT_S_MAX = 40
WATCH_MS = 20_000
ANSWER_BYTES_MAX = 256 << 20
# Pause before a request is repeated: doubled each time, up to the second.
PAUSE_S, PAUSE_S_MAX = 0.1, 2.0
HOST_BYTES_MAX = 64


class PoolError(RuntimeError):
    """A manager refuses a request: `kind` is its word for the reason, `status` the HTTP status."""

    def __init__(self, kind: str, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.kind, self.status = kind, status


class Busy(PoolError):
    """Such GPUs are not free now."""


class Gone(PoolError):
    """Changes since the revision are no longer known: list again, and watch from there."""


class Unreachable(PoolError):
    """No manager answers."""


KINDS: dict[str, type[PoolError]] = {"busy": Busy, "gone": Gone}


@dataclass(frozen=True)
class Event:
    """A change: the object as it is now, `None` if it is no longer there."""

    revision: str
    # box, gpu, lease, claim, quota or spares
    kind: str
    name: str
    value: dict[str, Any] | None


@dataclass(frozen=True)
class Change:
    """A change of a lease."""

    # attached and detached: a GPU came or went; detaching: it goes when no program uses it; lost; notice and
    # withdrawn: what the holder is to know before it loses GPUs; over: the lease is.
    what: str
    gpu: str | None = None
    reason: str | None = None
    # Time until GPUs are taken back, of a notice.
    left_s: float | None = None


@dataclass
class Lease:
    """GPUs of a pool. As a context it renews the lease, and gives the GPUs back at its end."""

    pool: Pool
    number: int
    term_s: float
    # For each box its name, url, grant and signed grant, by which anybody can use the GPUs: not shown.
    boxes: list[dict[str, Any]] = field(repr=False)
    # GPUs that were lost, as the manager tells.
    lost: list[dict[str, Any]] = field(default_factory=list)
    # What the holder is to know before it loses GPUs: nobody uses them, or their box is drained.
    notices: list[dict[str, Any]] = field(default_factory=list)
    is_over: bool = False
    _folder: tempfile.TemporaryDirectory[str] | None = None
    _holder: threading.Thread | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def gpus(self) -> list[str]:
        """UUIDs of the GPUs, box by box."""
        return [gpu for of in self.boxes for gpu, _ in of["grant"]["gpus"]]

    def write_grants(self, file: str | os.PathLike[str]) -> None:
        """Writes the file that OUTBOARD_GRANT_FILE names to programs. It must not exist."""
        text = "".join(f"{of['url']} {of['signed']}\n" for of in self.boxes)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as to:
            to.write(text)

    def environment(self) -> dict[str, str]:
        """Returns the environment for `outboard run`, with a file of grants that ends with the lease."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="outboard-")
            self.write_grants(Path(self._folder.name) / "grants")
        addresses = ",".join(of["url"] for of in self.boxes)
        return {**os.environ, "OUTBOARD_GPU": addresses, "OUTBOARD_GRANT_FILE": f"{self._folder.name}/grants"}

    def release(self) -> None:
        """Gives the GPUs back: programs lose them."""
        self._stopping.set()
        try:
            self.pool.release(self.number)
        finally:
            self.is_over = True
            if self._folder is not None:
                self._folder.cleanup()
                self._folder = None

    def __enter__(self) -> Lease:
        self._holder = threading.Thread(target=self._hold, name=f"lease {self.number}", daemon=True)
        self._holder.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        if self._holder is not None:
            # The manager answers what is held when the lease is over.
            self._holder.join(ANSWER_S_MAX)

    def _hold(self) -> None:
        """Renews the lease until it is over. If this process dies, the manager notices its connection's end."""
        news, pause_s = 0, PAUSE_S
        while not self._stopping.is_set():
            try:
                wait_s = self.term_s / 3 + ANSWER_S_MAX
                held = self.pool._ask("POST", f"/v1/leases/{self.number}/hold", {"news": news}, wait_s)
                news, self.lost, pause_s = held["news"], held["lost"], PAUSE_S
                self.notices = held["notices"]
            except PoolError as error:
                if error.kind in ("conflict", "unknown"):
                    self.is_over = True
                    return
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, self.term_s / 4)


class Pool:
    """A pool's manager, or several, one of which leads: addresses with commas, as OUTBOARD_POOL has them."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        timeout_s: float = ANSWER_S_MAX,
    ) -> None:
        """`token` is the text of `outboard token create`, otherwise what the file OUTBOARD_POOL_TOKEN_FILE has; `ca` a
        file of the authorities of https:// managers, otherwise OUTBOARD_POOL_CA; and `timeout_s` the time within which
        one of the managers must have answered."""
        addresses = url or os.environ.get("OUTBOARD_POOL")
        if not addresses:
            raise ValueError("no manager is named: Pool(url), or OUTBOARD_POOL")
        self._addresses = [_address(text) for text in addresses.split(",")]
        self._at = 0
        token_file = os.environ.get("OUTBOARD_POOL_TOKEN_FILE")
        if token is None and token_file:
            token = Path(token_file).read_text(encoding="utf-8")
        ca = ca or os.environ.get("OUTBOARD_POOL_CA")
        self._token = token.strip() if token else None
        self._timeout_s = timeout_s
        self._context: ssl.SSLContext | None = None
        if any(secure for secure, _, _ in self._addresses):
            self._context = ssl.create_default_context(cafile=os.fspath(ca) if ca else None)

    def list(self) -> dict[str, Any]:
        """Returns boxes, GPUs, leases, waiting claims, and the revision from which to watch."""
        return self._ask("GET", "/v1/pool")

    def tables(self) -> dict[str, Any]:
        """Returns the mapping tables of hosts and boxes."""
        return self._ask("GET", "/v1/tables")

    def lease(self, number: int) -> dict[str, Any]:
        """Returns a lease, over or not."""
        return self._ask("GET", f"/v1/leases/{int(number)}")

    def spares(self) -> dict[str, Any]:
        """Returns rules about spares, and the GPUs that are held back."""
        return self._ask("GET", "/v1/spares")

    def quotas(self) -> dict[str, Any]:
        """Returns bounds of holders, and what they have."""
        return self._ask("GET", "/v1/quotas")

    def audit(
        self, after: int = 0, *, gpu: str | None = None, holder: str | None = None, since_s: float = 0
    ) -> dict[str, Any]:
        """Returns what was given to whom and taken back, oldest first: all `entries` after the number `after`, those of
        a GPU, of a holder, since a time as `time.time()` has it. `revision` is the number from which to go on, and
        `dropped` says how many entries after `after` are no longer known."""
        wishes = {"gpu": gpu, "holder": holder, "since_s": max(0, int(since_s))}
        query = urlencode({name: wish for name, wish in wishes.items() if wish is not None})
        view: dict[str, Any] = {"revision": after, "dropped": 0, "entries": []}
        while True:
            said = self._ask("GET", f"/v1/audit?after={view['revision']}&{query}")
            view["revision"] = said["revision"]
            view["dropped"] += said["dropped"]
            view["entries"] += said["entries"]
            if not said["more"]:
                return view

    def claim(
        self,
        gpus: int = 1,
        *,
        model: str | None = None,
        same: str | None = None,
        fit: str = "best",
        priority: int = 0,
        term_s: float = 30,
        idle_s: float | None = None,
        wait_s: float | None = None,
        uid: str | None = None,
        owner: str = "",
        host: str | None = None,
        links: Iterable[tuple[int, int]] = (),
    ) -> Lease:
        """Takes GPUs, as `outboard pool claim` does. Waits for them for `wait_s`, without a bound if it is None; 0:
        raises Busy at once. The same claim comes again with its `uid`: with one of the caller's own it can be repeated
        by another process. `links` are networks that are good enough, each a round trip at most in ns and a bandwidth
        at least in bits a second: boxes whose network is not known are none of them. GPUs that have no
        session or call for `idle_s` are taken back."""
        claim = {
            "uid": uid or uuid.uuid4().hex,
            "owner": owner,
            "host": host or _host(),
            "gpus": gpus,
            "model": model,
            "same": same,
            "fit": fit,
            "priority": priority,
            "term_ms": round(term_s * 1000),
            "idle_ms": None if idle_s is None else round(idle_s * 1000),
        }
        if needs := [{"rtt_ns_max": rtt_ns, "bits_per_s_min": bits_per_s} for rtt_ns, bits_per_s in links]:
            claim["links"] = needs
        end = None if wait_s is None else time.monotonic() + wait_s
        try:
            while True:
                # The last time it does not wait: it has its GPUs, or has left the queue.
                may_wait = end is None or time.monotonic() < end
                said = self._ask("POST", "/v1/claims", {"claim": claim, "wait": may_wait}, WAIT_S_MAX)
                if "granted" in said:
                    granted = said["granted"]
                    return Lease(self, granted["lease"], granted["term_ms"] / 1000, granted["boxes"])
        except BaseException as error:
            if not isinstance(error, PoolError) and uid is None:
                self._give_up(claim)
            raise

    def _give_up(self, claim: dict[str, Any]) -> None:
        """Takes a claim out of the queue that was interrupted, and gives back what it has got meanwhile."""
        try:
            said = self._ask("POST", "/v1/claims", {"claim": claim, "wait": False})
            self.release(said["granted"]["lease"])
        except PoolError:
            # It waits no longer.
            pass

    def release(self, lease: int | Lease) -> dict[str, Any]:
        """Gives a lease's GPUs back. A lease that is over already is none the worse."""
        number = lease.number if isinstance(lease, Lease) else int(lease)
        return self._ask("POST", f"/v1/leases/{number}/release", {})

    def drain(self, box: str, reason: str | None) -> None:
        """Stops giving out the GPUs of a box; without a reason they are given out again."""
        self._ask("POST", f"/v1/boxes/{quote(box, safe='')}/drain", {"reason": reason})

    def forget(self, box: str) -> None:
        """Forgets a box without leases, whose GPUs others may have then."""
        self._ask("POST", f"/v1/boxes/{quote(box, safe='')}/forget", {})

    def taint(self, gpu: str, reason: str | None, *, broken: bool = False) -> None:
        """Stops giving out one GPU; without a reason it is healthy, and given out again. A broken one is replaced."""
        self._ask("POST", f"/v1/gpus/{quote(gpu, safe='')}/taint", {"reason": reason, "broken": broken})

    def detach(self, gpu: str, *, force: bool = False) -> dict[str, Any]:
        """Takes an attached GPU from its host when no program uses it any more, or at once."""
        return self._ask("POST", f"/v1/gpus/{quote(gpu, safe='')}/detach", {"force": force})

    def quota(self, owner: str, gpus: int | None) -> None:
        """Bounds the GPUs that a holder has at a time; None removes the bound."""
        self._ask("POST", f"/v1/quotas/{quote(owner, safe='')}", {"gpus": gpus})

    def set_spares(self, gpus: int, *, model: str | None = None, per: str | None = None) -> None:
        """Holds GPUs back, to take the place of broken ones: of a model or of each, in the pool or in each group."""
        self._ask("POST", "/v1/spares", {"gpus": gpus, "model": model, "per": per})

    def watch(self, after: str | None = None, *, stop: threading.Event | None = None) -> Iterator[Event]:
        """Yields what changes after a revision, without an end, or until `stop` is set. Goes on where it was after a
        broken connection; raises Gone if that is not possible, as after a manager's restart."""
        revision = self.list()["revision"] if after is None else after
        pause_s = PAUSE_S
        while stop is None or not stop.is_set():
            try:
                path = f"/v1/watch?after={quote(revision, safe='')}&wait_ms={WATCH_MS}"
                changes = self._ask("GET", path, None, WAIT_S_MAX)
                pause_s = PAUSE_S
            except Unreachable:
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
                time.sleep(pause_s)
                continue
            except PoolError as error:
                if error.kind not in ("busy", "notnow", "elsewhere"):
                    raise
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
                time.sleep(pause_s)
                continue
            for event in changes["events"]:
                [(kind, value)] = event["object"].items()
                yield Event(event["revision"], kind, event["name"], value)
            revision = changes["revision"]

    def own_lease(self) -> int:
        """Returns the number of the lease with which `outboard run --pool` has started this program."""
        number = os.environ.get("OUTBOARD_LEASE", "")
        if not number.isdecimal():
            raise ValueError("this program has no lease of its own: outboard run --pool sets OUTBOARD_LEASE")
        return int(number)

    def changes(
        self, lease: int | Lease, *, since: dict[str, Any] | None = None, stop: threading.Event | None = None
    ) -> Iterator[Change]:
        """Yields what changes in a lease until it is over, or until `stop` is set: GPUs that are attached, detached or
        lost, and notices. A process keeps the GPUs that it has; those that it starts see the new ones. Goes on after a
        broken connection and a manager's restart, and then tells what has changed meanwhile. `since` is what `lease()`
        has returned: what has changed after that is told, too."""
        number, seen = lease.number if isinstance(lease, Lease) else int(lease), since
        while stop is None or not stop.is_set():
            try:
                # In this order: what changes in between comes with the watch.
                revision, now = self.list()["revision"], self.lease(number)
                yield from _differences(seen or {**now, "notices": []}, now)
                seen = now
                if now["state"] != "granted":
                    yield Change("over", reason=now["reason"])
                    return
                for event in self.watch(revision, stop=stop):
                    if (event.kind, event.name) != ("lease", str(number)) or event.value is None:
                        continue
                    yield from _differences(seen, event.value)
                    seen = event.value
                    if seen["state"] != "granted":
                        yield Change("over", reason=seen["reason"])
                        return
            except Gone:
                continue
            except PoolError as error:
                if error.kind not in ("unreachable", "busy", "notnow", "elsewhere"):
                    raise
                time.sleep(PAUSE_S_MAX)

    def _ask(self, method: str, path: str, body: Any = None, wait_s: float = 0) -> Any:
        """Sends a request to the manager that leads. What it changes is the same if it is repeated."""
        end = time.monotonic() + self._timeout_s
        data = None if body is None else json.dumps(body).encode()
        while True:
            try:
                return self._exchange(method, path, data, max(wait_s, self._timeout_s))
            except PoolError as error:
                is_elsewhere = isinstance(error, Unreachable) or error.kind in ("elsewhere", "notnow")
                if not is_elsewhere or time.monotonic() >= end:
                    raise
                self._at = (self._at + 1) % len(self._addresses)
                time.sleep(PAUSE_S)

    def _exchange(self, method: str, path: str, data: bytes | None, timeout_s: float) -> Any:
        secure, host, port = self._addresses[self._at]
        if secure:
            connection: HTTPConnection = HTTPSConnection(host, port, timeout=timeout_s, context=self._context)
        else:
            connection = HTTPConnection(host, port, timeout=timeout_s)
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            said = answer.read(ANSWER_BYTES_MAX + 1)
            if len(said) > ANSWER_BYTES_MAX:
                raise HTTPException("the answer is too long")
            document = json.loads(said)
        except ssl.SSLCertVerificationError as error:
            raise PoolError("untrusted", f"the manager at {host}:{port}: {error}") from error
        except (OSError, HTTPException, ValueError) as error:
            raise Unreachable("unreachable", f"the manager at {host}:{port} does not answer: {error}") from error
        finally:
            connection.close()
        if answer.status == 200:
            return document
        if not isinstance(document, dict) or not isinstance(document.get("error"), str):
            raise PoolError("strange", f"the manager at {host}:{port} answers {answer.status}", answer.status)
        kind = document["error"]
        raise KINDS.get(kind, PoolError)(kind, str(document.get("text", "")), answer.status)


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[Change]:
    """Yields what differs between two states of a lease."""
    old, new = (set(view["gpus"]) | set(view["detaching"]) for view in (before, now))
    for gpu in now["gpus"]:
        if gpu not in old:
            yield Change("attached", gpu)
    for gpu in now["detaching"]:
        if gpu not in before["detaching"]:
            yield Change("detaching", gpu)
    for lost in now["lost"]:
        if lost not in before["lost"]:
            yield Change("lost", lost["uuid"], lost["reason"])
    for gpu in sorted(old - new):
        yield Change("detached", gpu)
    notices = [{(it["what"], it["box"]): it for it in view["notices"]} for view in (before, now)]
    for what, it in notices[1].items():
        if what not in notices[0]:
            left_s = None if it["left_ms"] is None else it["left_ms"] / 1000
            yield Change("notice", reason=f"{it['what']}: {it['reason']}", left_s=left_s)
    for what, it in notices[0].items():
        if what not in notices[1] and now["state"] == "granted":
            yield Change("withdrawn", reason=f"{it['what']}: {it['reason']}")


def _address(text: str) -> tuple[bool, str, int]:
    """Returns whether it is encrypted, host and port of `http://HOST:PORT`, `https://HOST:PORT`."""
    parts = urlsplit(text.strip())
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.query.startswith("fingerprint="):
        raise ValueError("a manager with --tls is known by its key, which Python cannot check; use --certificate there")
    if parts.scheme not in ("http", "https") or not host or not port or parts.path not in ("", "/") or parts.query:
        raise ValueError(f"{text!r} is no manager's address: http://HOST:PORT or https://HOST:PORT")
    return parts.scheme == "https", host, port


def _host() -> str:
    """Returns this machine's name as pools know it."""
    return re.sub(r"[^A-Za-z0-9._-]", "", socket.gethostname())[:HOST_BYTES_MAX] or "host"

"""Guests with RDMA devices, booted once for all tests that want the same; and a warning where there can be none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from rdma_guest.guest import Guest, GuestError, one_guest, two_guests  # noqa: E402
from rdma_guest.image import Image, ImageError, Unavailable, prepare  # noqa: E402


class Lab:
    """One guest with two devices, or two guests with one each: never both at a time, because each
    needs a core."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._stack = ExitStack()
        self._guests: tuple[Guest, ...] = ()
        self._is_newer = False

    def one(self) -> Guest:
        if len(self._guests) != 1 or self._is_newer:
            self.close()
            self._guests = (self._stack.enter_context(one_guest(self._image)),)
        return self._guests[0]

    def newer(self, image: Image) -> Guest:
        if not self._is_newer:
            self.close()
            self._guests, self._is_newer = (self._stack.enter_context(one_guest(image)),), True
        return self._guests[0]

    def two(self) -> tuple[Guest, Guest]:
        if len(self._guests) != 2:
            self.close()
            self._guests = self._stack.enter_context(two_guests(self._image))
        server, client = self._guests
        return server, client

    def calm(self) -> None:
        """Nothing of a test is left for the next; guests that do not obey are replaced."""
        try:
            for guest in self._guests:
                guest.end_all()
        except GuestError:
            self.close()

    def close(self) -> None:
        self._guests, self._is_newer = (), False
        self._stack.close()


@pytest.fixture(scope="session")
def image() -> Image:
    try:
        return prepare()
    except Unavailable as error:
        # For each test; `make test` counts them in its last lines.
        pytest.skip(f"no guest: {error}")


@pytest.fixture(scope="session")
def lab(image: Image) -> Iterator[Lab]:
    lab = Lab(image)
    yield lab
    lab.close()


@pytest.fixture(scope="session")
def executables() -> dict[str, Path]:
    """The tests of crates, as they lie in the target folder. All packages, as `make test-rdma` builds them: for some
    alone cargo chooses fewer features, and builds the large crates again."""
    command = ["cargo", "build", "--quiet", "--workspace", "--lib", "--bins", "--tests", "--examples"]
    built = subprocess.run([*command, "--message-format=json"], cwd=ROOT, capture_output=True, text=True, check=True)
    said = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    tests = [one for one in said if one.get("executable")]
    return {
        f"{Path(one['manifest_path']).parent.name}/{one['target']['name']}": Path(one["executable"]) for one in tests
    }


@pytest.fixture
def guest(lab: Lab) -> Iterator[Guest]:
    """rxe0 (10.213.78.1) and rxe1 (10.213.78.2) on the two ends of a cable, veth0 and veth1."""
    yield lab.one()
    lab.calm()


@pytest.fixture
def tls_guest(lab: Lab) -> Iterator[Guest]:
    """A newer kernel that has TLS loaded, and no RDMA."""
    try:
        image = prepare(newer=True)
    except (ImageError, Unavailable) as error:
        pytest.skip(f"no guest with kernel TLS: {error}")
    yield lab.newer(image)
    lab.calm()


@pytest.fixture
def pair(lab: Lab) -> Iterator[tuple[Guest, Guest]]:
    """Two machines with a cable between them: rxe0 on eth0 of each, 10.213.78.1 and 10.213.78.2."""
    yield lab.two()
    lab.calm()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Guests of a kind one after the other.
    kinds = ("pair", "tls_guest")
    items.sort(key=lambda item: [kind in getattr(item, "fixturenames", ()) for kind in kinds])

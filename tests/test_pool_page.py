"""The pool's page in a real browser: 512 GPUs, what boxes say as text, changes as they happen, a box drained."""

from __future__ import annotations

import base64
import html
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser
from harness import OUTBOARD
from pool_boxes import MODEL, Boxes
from test_pool import Pool, until
from test_pool_api import BOXES, GPUS, ask, claim

ROWS = "document.querySelectorAll('#gpus tbody tr').length"
# A change is shown within this time; the rest is room for a loaded machine.
SHOWN_S_MAX = 1 + 9


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    pool = Pool(tmp_path_factory.mktemp("pool"))
    boxes = Boxes(pool.url, BOXES, GPUS)
    until(lambda: [gpu["state"] for gpu in ask(pool, "GET", "/v1/pool")[1]["gpus"]] == ["free"] * BOXES * GPUS)
    yield pool
    boxes.stop()
    pool.stop()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.stop()


def texts(section: str, column: int) -> str:
    return f"[...document.querySelectorAll('#{section} tbody tr')].map(row => row.cells[{column}].textContent)"


def of_box(name: str, column: int) -> str:
    rows = "[...document.querySelectorAll('#boxes tbody tr')]"
    return f"{rows}.find(row => row.cells[0].textContent === '{name}').cells[{column}].textContent"


def drained(pool: Pool, name: str) -> str | None:
    return next(of["drained"] for of in ask(pool, "GET", "/v1/pool")[1]["boxes"] if of["box"] == name)


def test_the_page_follows_the_pool_and_drains_a_box(pool: Pool, browser: Browser) -> None:
    browser.show(pool.url)
    browser.until(lambda: browser.value("document.getElementById('live').textContent") == "live")
    assert browser.value(ROWS) == 512
    # What a box calls its GPUs is text.
    assert set(browser.value(texts("gpus", 3))) == {MODEL}
    assert (
        browser.value(
            "document.querySelectorAll('main *:not(section,h2,p,span,form,label,select,option,input,"
            "button,table,thead,tbody,tr,th,td,svg,svg *)').length"
        )
        == 0
    )
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    reason = "<img src=x onerror=alert(1)>\"'&"
    ask(pool, "POST", "/v1/boxes/box1/drain", {"reason": reason})
    lease = ask(pool, "POST", "/v1/claims", claim("page", 3, owner="alice"))[1]["granted"]["lease"]
    shown = browser.until(lambda: browser.value(texts("leases", 0)) == [str(lease)])
    assert shown < SHOWN_S_MAX
    browser.until(lambda: browser.value(f"{texts('gpus', 6)}.filter(it => it === 'leased').length") == 3)
    assert browser.value(of_box("box1", 5)) == reason
    ask(pool, "POST", f"/v1/leases/{lease}/release", {})
    browser.until(lambda: browser.value("document.querySelector('#leases .none') !== null"))
    # The page was not loaded again for that.
    assert browser.value("performance.getEntriesByType('navigation').length") == 1
    browser.value("document.querySelector('select').value = 'box2'")
    browser.value("document.querySelector('button[value=drain]').click()")
    browser.until(lambda: browser.value(f"document.readyState === 'complete' && {of_box('box2', 4)}") == "drained")
    assert drained(pool, "box2") == "drained"
    for box in ("box1", "box2"):
        ask(pool, "POST", f"/v1/boxes/{box}/drain", {"reason": None})
    assert browser.complaints() == []


def test_the_page_works_without_scripts(pool: Pool, browser: Browser) -> None:
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    browser.ask("Page.navigate", url=pool.url)
    browser.until(lambda: browser.markup().count("GPU-") == 512)
    until(lambda: len(ask(pool, "GET", "/v1/history")[1]["samples"]) > 1)
    assert ask(pool, "GET", "/v1/history")[1]["samples"][-1]["gpus"] == 512
    browser.until(lambda: browser.markup().count("<polyline") == 3)
    points = re.search(r'class="line free" points="([^"]*)"', browser.markup())
    assert points is not None and len(points[1].split()) > 1
    assert html.escape(MODEL, quote=False) in browser.markup() and 'http-equiv="refresh"' in browser.markup()
    # The page may be loaded again at any time: then its nodes are others.
    browser.until(lambda: browser.press("button[value=drain]"))
    first = ask(pool, "GET", "/v1/pool")[1]["boxes"][0]["box"]
    browser.until(lambda: drained(pool, first) == "drained")
    ask(pool, "POST", f"/v1/boxes/{first}/drain", {"reason": None})
    browser.ask("Emulation.setScriptExecutionDisabled", value=False)


class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Leaves a redirection as it is."""


def fetch(url: str, fields: dict[str, str] | None = None, password: str | None = None) -> tuple[int, str, str]:
    """Returns status, the wanted scheme of passwords, and text."""
    data = None if fields is None else urllib.parse.urlencode(fields).encode()
    request = urllib.request.Request(url, data)
    if password is not None:
        request.add_header("Authorization", "Basic " + base64.b64encode(f"x:{password}".encode()).decode())
    try:
        with urllib.request.build_opener(Stay).open(request, timeout=10) as answer:
            return answer.status, "", answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("WWW-Authenticate", ""), error.read().decode()


def test_with_tokens_the_page_needs_one_and_the_form_an_operators(tmp_path: Path, browser: Browser) -> None:
    tokens = tmp_path / "tokens"
    create = [OUTBOARD, "token", "create", "--tokens", tokens]
    alice, carol = (
        subprocess.run([*create, name], check=True, capture_output=True, text=True).stdout.strip()
        for name in ("alice", "operator.carol")
    )
    pool = Pool(tmp_path, "--tokens", str(tokens))
    status, scheme, text = fetch(pool.url + "/")
    assert (status, scheme[:5], "<h1>Refused" in text) == (401, "Basic", True)
    assert fetch(pool.url + "/", password="wrong")[0] == 401
    assert 'name="token"' in fetch(pool.url + "/", password=alice)[2]
    form = {"box": "none", "action": "drain", "reason": "x"}
    # The password that the browser sends by itself drains nothing.
    for fields, expected in (
        (form, 401),
        ({**form, "token": alice}, 403),
        ({**form, "token": carol}, 404),
        ({**form, "token": carol, "more": "x"}, 401),
    ):
        assert fetch(pool.url + "/page/drain", fields, carol)[0] == expected, fields
    browser.show(pool.url.replace("//", f"//x:{alice}@"))
    browser.until(lambda: browser.value("document.getElementById('live').textContent") == "live")
    pool.stop()

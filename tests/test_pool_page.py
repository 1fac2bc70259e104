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
    # Nor for the form, which has said so.
    browser.until(lambda: browser.value("document.querySelector('[role=status]').textContent") == "done")
    assert browser.value("performance.getEntriesByType('navigation').length") == 1
    for box in ("box1", "box2"):
        ask(pool, "POST", f"/v1/boxes/{box}/drain", {"reason": None})
    assert browser.complaints() == []


def shown(browser: Browser, section: str) -> list[list[str]]:
    """Returns the texts of a table's rows that are not hidden."""
    rows = f"[...document.querySelectorAll('#{section} tbody tr:not([hidden])')]"
    return browser.value(f"{rows}.map(row => [...row.cells].map(cell => cell.textContent))") or []


def by_manager(browser: Browser, section: str) -> list[list[str]]:
    """Returns the texts of a table's rows as the page has them when it is loaded."""
    rows = f"[...page.querySelectorAll('#{section} tbody tr')]"
    text = f"{rows}.map(row => [...row.cells].map(cell => cell.textContent))"
    parse = "const page = new DOMParser().parseFromString(it, 'text/html')"
    script = f"fetch('/').then(it => it.text()).then(it => {{{parse}; return {text}}})"
    said = browser.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
    return said["result"]["value"]


def test_rows_that_change_are_what_the_page_has_and_only_they_come(pool: Pool, browser: Browser) -> None:
    browser.show(pool.url)
    browser.until(lambda: browser.value("document.getElementById('live').textContent") == "live")
    leases = [ask(pool, "POST", "/v1/claims", claim("rows0", 1, owner="bob"))[1]["granted"]["lease"]]
    browser.until(lambda: [row[0] for row in shown(browser, "leases")] == [str(leases[0])])
    # The first lease brings a table that was not there. From now on nodes of rows that do not change are kept.
    browser.value("document.querySelector('#gpus tbody tr:last-child').kept = true")
    for number in (1, 2):
        document = claim(f"rows{number}", 1 + number, owner="bob")
        leases.append(ask(pool, "POST", "/v1/claims", document)[1]["granted"]["lease"])
    ask(pool, "POST", f"/v1/leases/{leases[1]}/release", {})
    left = {str(leases[0]), str(leases[2])}
    browser.until(lambda: {row[0] for row in shown(browser, "leases")} == left)
    for section in ("gpus", "boxes"):
        browser.until(lambda section=section: shown(browser, section) == by_manager(browser, section))
    assert browser.value("document.querySelector('#gpus tbody tr:last-child').kept") is True
    loads = "performance.getEntriesByType('resource').filter(it => new URL(it.name).pathname === '/').length"
    watches = "performance.getEntriesByType('resource').filter(it => it.name.includes('/v1/watch')).length"
    browser.value("performance.clearResourceTimings()")
    ask(pool, "POST", "/v1/boxes/box3/drain", {"reason": "rows"})
    browser.until(lambda: of_box_is(browser, "box3", "drained"))
    browser.until(lambda: browser.value(watches) > 1)
    assert browser.value(loads) == 0
    ask(pool, "POST", "/v1/boxes/box3/drain", {"reason": None})
    for lease in (leases[0], leases[2]):
        ask(pool, "POST", f"/v1/leases/{lease}/release", {})
    browser.until(lambda: browser.value("document.querySelector('#leases .none') !== null"))
    assert browser.complaints() == []


def of_box_is(browser: Browser, name: str, state: str) -> bool:
    return browser.value(of_box(name, 4)) == state


def test_rows_are_sorted_and_filtered_while_they_change(pool: Pool, browser: Browser) -> None:
    browser.show(pool.url)
    browser.until(lambda: browser.value("document.getElementById('live').textContent") == "live")
    names = [row[0] for row in shown(browser, "boxes")]
    title = "document.querySelectorAll('#boxes th')[0]"
    browser.value(f"{title}.click()")
    number = [f"box{at}" for at in range(BOXES)]
    assert [row[0] for row in shown(browser, "boxes")] == number
    browser.value(f"{title}.click()")
    assert [row[0] for row in shown(browser, "boxes")] == number[::-1]
    assert browser.value(f"{title}.ariaSort") == "descending"
    browser.value("document.querySelector('input[type=search]').value = 'BOX7 reports'")
    browser.value("document.querySelector('input[type=search]').dispatchEvent(new Event('input'))")
    assert [row[0] for row in shown(browser, "boxes")] == ["box7"] and shown(browser, "gpus") == []
    # A row that changes stays out, or goes, as the filter has it.
    ask(pool, "POST", "/v1/boxes/box7/drain", {"reason": "sorted"})
    browser.until(lambda: shown(browser, "boxes") == [])
    ask(pool, "POST", "/v1/boxes/box7/drain", {"reason": None})
    browser.until(lambda: [row[0] for row in shown(browser, "boxes")] == ["box7"])
    browser.value("document.querySelector('input[type=search]').value = ''")
    browser.value("document.querySelector('input[type=search]').dispatchEvent(new Event('input'))")
    assert [row[0] for row in shown(browser, "boxes")] == number[::-1]
    # A third time, and the order is the manager's.
    browser.value(f"{title}.click()")
    browser.until(lambda: [row[0] for row in shown(browser, "boxes")] == names)
    assert browser.complaints() == []


def test_the_page_works_without_scripts(pool: Pool, browser: Browser) -> None:
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    browser.ask("Page.navigate", url=pool.url)
    browser.until(lambda: browser.markup().count("<td>GPU-") == 512)
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
    alice, carol, box = (
        subprocess.run([*create, name], check=True, capture_output=True, text=True).stdout.strip()
        for name in ("alice", "operator.carol", "box.box0")
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
    boxes = Boxes(pool.url, 1, 1, token=box)
    browser.show(pool.url.replace("//", f"//x:{alice}@"))
    browser.until(lambda: browser.value("document.getElementById('live').textContent") == "live")
    browser.until(lambda: browser.value("document.querySelectorAll('#boxes tbody tr').length") == 1)
    # The form's own token counts, and is asked for each time.
    for token, said, state in ((alice, "operator.", "reports"), (carol, "done", "drained")):
        browser.show(pool.url.replace("//", f"//x:{alice}@"))
        browser.until(lambda: browser.value("document.querySelector('option')?.textContent") == "box0")
        browser.value(f"document.querySelector('[name=token]').value = '{token}'")
        browser.value("document.querySelector('button[value=drain]').click()")
        status = "document.querySelector('[role=status]')?.textContent ?? ''"
        browser.until(lambda said=said, status=status: said in browser.value(status))
        browser.until(lambda state=state: of_box_is(browser, "box0", state))
        assert browser.value("document.querySelector('[name=token]').value") == ""
    boxes.stop()
    pool.stop()

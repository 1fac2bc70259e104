"""A real browser without a window, asked over the pipe of its DevTools protocol."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Names that tools/chromium.sh also looks for.
NAMES = ("chromium", "chromium-browser", "google-chrome")
ANSWER_S_MAX = 60
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]


class Refused(RuntimeError):
    """The browser cannot do what it was asked for."""


class Browser:
    """One page of a browser."""

    def __init__(self, folder: Path) -> None:
        found = next(filter(None, map(shutil.which, NAMES)), None)
        assert found is not None, "no browser is installed; run tools/chromium.sh"
        theirs_in, self.to = os.pipe()
        self.come, theirs_out = os.pipe()
        argv = [found, *OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}", "about:blank"]
        # The protocol's pipes have the numbers 3 and 4.
        shell = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *argv]
        log = (folder / "browser.log").open("w")
        self.process = subprocess.Popen(
            shell, pass_fds=[theirs_in, theirs_out], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.last, self.session, self.buffer = 0, "", b""
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> Any:
        self.last += 1
        document = {"id": self.last, "method": method, "params": params}
        if self.session:
            document["sessionId"] = self.session
        os.write(self.to, json.dumps(document).encode() + b"\0")
        end = time.monotonic() + ANSWER_S_MAX
        while True:
            while b"\0" in self.buffer:
                said, self.buffer = self.buffer.split(b"\0", 1)
                message = json.loads(said)
                if message.get("id") == self.last:
                    if "error" in message:
                        raise Refused(f"{method}: {message['error']}")
                    return message["result"]
                self.events.append(message)
            assert select.select([self.come], [], [], end - time.monotonic())[0], f"{method} has no answer"
            piece = os.read(self.come, 1 << 20)
            assert piece, "the browser has ended"
            self.buffer += piece

    def show(self, url: str) -> None:
        """Goes to a page, and waits until it is there."""
        said = self.ask("Page.navigate", url=url)
        assert "errorText" not in said, said
        self.until(
            lambda: self.value("document.readyState") == "complete" and self.value("location.href") != "about:blank"
        )

    def value(self, expression: str) -> Any:
        """Returns what an expression of the page has as its value."""
        said = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        return said["result"].get("value")

    def markup(self) -> str:
        """Returns the page as the browser has built it, without its scripts; nothing while it is loaded again."""
        try:
            root = self.ask("DOM.getDocument", depth=0)["root"]["nodeId"]
            return str(self.ask("DOM.getOuterHTML", nodeId=root)["outerHTML"])
        except Refused:
            return ""

    def press(self, selector: str) -> bool:
        """Presses a button with the Enter key, without a script. Returns whether the button was there."""
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        try:
            root = self.ask("DOM.getDocument", depth=0)["root"]["nodeId"]
            self.ask("DOM.focus", nodeId=self.ask("DOM.querySelector", nodeId=root, selector=selector)["nodeId"])
            for kind in ("keyDown", "keyUp"):
                self.ask("Input.dispatchKeyEvent", type=kind, **key)
        except Refused:
            return False
        return True

    def until(self, what: Callable[[], bool]) -> float:
        start = time.monotonic()
        while not what():
            assert time.monotonic() < start + ANSWER_S_MAX, "the page does not show it"
            time.sleep(0.05)
        return time.monotonic() - start

    def complaints(self) -> list[str]:
        """Returns errors of scripts, and what the page's policy has stopped."""
        found = [it["params"] for it in self.events if it.get("method") == "Runtime.exceptionThrown"]
        entries = [it["params"]["entry"] for it in self.events if it.get("method") == "Log.entryAdded"]
        return [json.dumps(it) for it in [*found, *(it for it in entries if it["level"] == "error")]]

    def stop(self) -> None:
        self.session = ""
        self.ask("Browser.close")
        self.process.wait(30)
        os.close(self.to)
        os.close(self.come)

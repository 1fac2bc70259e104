"""The page of messages names messages that the code has."""

from __future__ import annotations

import re

from harness import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"


def code() -> str:
    """Returns all source text, with strings that go on in the next line joined, and parameters as `...`."""
    files = sorted((ROOT / "crates").glob("*/src/**/*.rs"))
    text = "\n".join(file.read_text() for file in files)
    text = re.sub(r"\\\n\s*", "", text)
    return text.replace("`", "")


def messages() -> list[str]:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return [re.match(r"\| `([^`]+)` \|", row)[1] for row in rows]  # type: ignore[index]


def test_each_message_is_one_of_the_codes() -> None:
    source = code()
    found = messages()
    assert len(found) == 63
    unknown = []
    for message in found:
        # A message's parts stand in one string, in this order, with parameters between.
        parts = [re.escape(part) for part in message.split("...")]
        if not re.search(r"[^\"\n]{0,60}".join(parts), source):
            unknown.append(message)
    assert unknown == []


def test_no_message_is_there_twice() -> None:
    assert len(messages()) == len(set(messages()))

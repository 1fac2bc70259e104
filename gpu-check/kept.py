"""Files of results: replaced in one step, and added to from run to run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import machine


def write(path: Path, results: dict[str, Any]) -> None:
    """Replaces the file in one step, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(machine.scrub(results), indent=1) + "\n")
    os.replace(temporary, path)


def load(path: Path, new: dict[str, Any]) -> dict[str, Any]:
    """Returns the results so far, which must have the format and tables of `new` (else ValueError);
    `new` if there is no file."""
    if not path.exists():
        return new
    try:
        results = dict(json.loads(path.read_text()))
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no file of results: {error}") from error
    tables = [name for name, value in new.items() if isinstance(value, dict)]
    if results.get("format") != new["format"] or not all(isinstance(results.get(name), dict) for name in tables):
        raise ValueError(f"{path} is no file of results of this program")
    return results


def merged(old: dict[str, Any] | None, new: dict[str, Any], about: dict[str, Any], keep: bool) -> dict[str, Any]:
    """Returns a part as measured now; with `keep`, also the cases that an earlier run measured."""
    for case in new.get("cases", {}).values():
        case["date_utc"] = about["date_utc"]
    if keep and old is not None:
        # Kept cases were measured on the machine that the part named until now.
        for case in old["cases"].values():
            case.setdefault("machine", old["machine"])
        new = new | {"cases": old["cases"] | new["cases"]}
    return {"machine": about, **new}

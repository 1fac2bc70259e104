"""Boxes of a pool without GPUs: what an agent says to the manager, in as many boxes as a test wants."""

from __future__ import annotations

import http.client
import json
import threading
from typing import Any
from urllib.parse import urlsplit

MODEL = 'H<200> & "co"'


class Boxes:
    """Boxes that have joined, and confirm what the manager asks for."""

    def __init__(self, url: str, count: int, gpus: int, token: str | None = None) -> None:
        self.head = {"Content-Type": "application/json"}
        if token:
            self.head["Authorization"] = f"Bearer {token.strip()}"
        self.stopping = threading.Event()
        self.threads: list[threading.Thread] = []
        for number in range(count):
            # They join in the order of their names.
            document = join(number, gpus)
            parts = urlsplit(url)
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
            answer = ask(connection, "/v1/boxes/join", document, self.head)
            thread = threading.Thread(target=self.serve, args=(connection, document, answer), daemon=True)
            thread.start()
            self.threads.append(thread)

    def serve(self, connection: http.client.HTTPConnection, join: dict[str, Any], answer: dict[str, Any]) -> None:
        try:
            while not self.stopping.is_set():
                floors = [{"uuid": uuid, "floor": floor, "busy": None} for uuid, floor in answer["floors"]]
                said = {name: join[name] for name in ("name", "instance")}
                said |= {name: answer[name] for name in ("incarnation", "revision")}
                answer = ask(connection, "/v1/boxes/report", {**said, "gpus": floors}, self.head)
        except (OSError, http.client.HTTPException, KeyError):
            # The manager has gone, or the test is over.
            pass

    def stop(self) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(20)


def join(number: int, gpus: int) -> dict[str, Any]:
    facts = [
        {
            "uuid": f"GPU-{number:08x}-0000-0000-0000-{gpu:012x}",
            "model": MODEL,
            "memory_bytes": 141 << 30,
            "capability": [9, 0],
            "pci": [0, gpu, 0],
            "nvlink": f"n<{gpu // 8}>",
            "bridge": None,
            "proxy": 0,
        }
        for gpu in range(gpus)
    ]
    name = f"box{number}"
    return {"name": name, "identity": name, "instance": name, "url": f"tcp://192.0.2.{number}:4833", "gpus": facts}


def ask(connection: http.client.HTTPConnection, path: str, document: Any, head: dict[str, str]) -> Any:
    connection.request("POST", path, json.dumps(document), head)
    return json.loads(connection.getresponse().read())

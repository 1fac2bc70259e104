"""Says what NVML tells of GPUs that come, go and break: nvidia-ml-py, unmodified, two waits without an end.

Prints the UUIDs of its GPUs and "bind", "unbind" or "xid" for each event, until a line comes on its standard input.
With "now" as an argument it then initialises NVML again, and prints the UUIDs once more."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pynvml as n

FOREVER_MS = 2**32 - 1
speaking = threading.Lock()
SYSTEM = {n.nvmlSystemEventTypeGpuDriverBind: "bind", n.nvmlSystemEventTypeGpuDriverUnbind: "unbind"}
SET, WAIT = n.nvmlSystemEventSetCreateRequest_v1, n.nvmlSystemEventSetWaitRequest_v1


def say(*words: object) -> None:
    with speaking:
        print(*words, flush=True)


def systems_events() -> None:
    events = n.nvmlSystemEventSetCreate(SET)
    types = n.nvmlSystemEventTypeGpuDriverBind | n.nvmlSystemEventTypeGpuDriverUnbind
    n.nvmlSystemRegisterEvents(n.nvmlSystemRegisterEventRequest_v1, types, events)
    room = (n.c_nvmlSystemEventData_v1_t * 4)()
    ready.release()
    while True:
        for event in n.nvmlSystemEventSetWait(WAIT, events, FOREVER_MS, room, len(room)):
            say(SYSTEM[event["eventType"]], f"{event['gpuId']:08x}")


def devices_events() -> None:
    events = n.nvmlEventSetCreate()
    for gpu in gpus:
        n.nvmlDeviceRegisterEvents(gpu, n.nvmlDeviceGetSupportedEventTypes(gpu), events)
    ready.release()
    while True:
        event = n.nvmlEventSetWait_v2(events, FOREVER_MS)
        assert event.eventType == n.nvmlEventTypeXidCriticalError
        assert event.gpuInstanceId == event.computeInstanceId == 0xFFFFFFFF
        say("xid", event.eventData, n.nvmlDeviceGetUUID(event.device))


def until_shutdown(wait: Callable[[], Any]) -> None:
    try:
        wait()
    except n.NVMLError_Uninitialized:
        say("over")


def all_gpus() -> list[Any]:
    return [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]


def uuids() -> str:
    return ",".join(n.nvmlDeviceGetUUID(gpu) for gpu in all_gpus())


n.nvmlInit()
gpus = all_gpus()
ready = threading.Semaphore(0)
threads = [threading.Thread(target=until_shutdown, args=[wait]) for wait in (systems_events, devices_events)]
for thread in threads:
    thread.start()
    ready.acquire()
say(uuids())
sys.stdin.readline()
n.nvmlShutdown()
for thread in threads:
    thread.join()
if sys.argv[1:] == ["now"]:
    n.nvmlInit()
    say(uuids())
    n.nvmlShutdown()

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Computes what `pyruntime top` shows from documents that the server sends to its page. (pure)

Counters only grow, so a rate is the difference of two documents by the time between them. Both are the server's: its
clock is in the documents. Counters that begin anew, as those of a model that is loaded again, have no rate at first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TypedDict, cast

from pyruntime.runtime.json_types import JsonObject

# Steps of a request in the documents.
TOTAL, QUEUE = "total", "queue"


class ServerDocument(TypedDict, total=False):
    """The part about the server: see app/watch.py."""

    began_ms: int
    now_ms: int
    ready: bool
    exiting: bool
    name: str
    version: str
    in_flight: int
    pending_bytes: int


class InstanceDocument(TypedDict):
    """One instance of a version."""

    name: str
    state: str
    restarts: int


class VersionDocument(TypedDict):
    """The counters of one version."""

    name: str
    version: str
    since_ms: int
    queued: int
    levels: dict[str, int]
    memory: int
    success: int
    failure: int
    ns: dict[str, int]
    quantiles_us: list[float | None] | None
    instances: list[InstanceDocument]


class ModelDocument(TypedDict):
    """A row of the repository index."""

    name: str
    version: str
    state: str
    reason: str


class WatchDocument(TypedDict, total=False):
    """A document. What is closed to the client is not there."""

    server: ServerDocument
    models: list[ModelDocument]
    versions: list[VersionDocument]
    closed: dict[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """One version of a model. Rates are per second and times in milliseconds; None for what is not known.

    `levels` has the waiting requests of each priority level that has some. `p50_ms` and `p99_ms` are of the last
    minute, and only known if the server makes summaries of latencies. Memory is that of tensors, in bytes.
    """

    model: str
    version: str
    state: str
    reason: str = ""
    ready: int = 0
    instances: int = 0
    restarts: int = 0
    queued: int | None = None
    levels: Mapping[str, int] = field(default_factory=dict)
    requests: float | None = None
    failures: float | None = None
    latency_ms: float | None = None
    queue_ms: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class View:
    """The server and its models at one time. Rates are sums over all models; None for what is not known."""

    name: str
    version: str
    state: str
    up_s: float
    in_flight: int | None
    pending_bytes: int | None
    requests: float | None
    failures: float | None
    closed: Mapping[str, str]
    rows: tuple[Row, ...]

    def to_json(self) -> JsonObject:
        """All of it."""
        return cast("JsonObject", asdict(self) | {"rows": [asdict(row) for row in self.rows]})


class Sort(StrEnum):
    """What rows are ordered by. Of numbers the largest comes first, and what is not known last."""

    NAME = "name"
    REQUESTS = "requests"
    FAILURES = "failures"
    LATENCY = "latency"
    QUEUE = "queue"
    MEMORY = "memory"
    RESTARTS = "restarts"


_NUMBERS: dict[Sort, Callable[[Row], float]] = {
    Sort.NAME: lambda row: 0.0,
    Sort.REQUESTS: lambda row: _or_less(row.requests),
    Sort.FAILURES: lambda row: _or_less(row.failures),
    Sort.LATENCY: lambda row: _or_less(row.latency_ms),
    Sort.QUEUE: lambda row: _or_less(row.queued),
    Sort.MEMORY: lambda row: _or_less(row.memory),
    Sort.RESTARTS: lambda row: row.restarts,
}


def _or_less(value: float | None) -> float:
    return -1.0 if value is None else value


class Samples:
    """Makes a view of each document, with the one before it."""

    def __init__(self, sort: Sort = Sort.NAME) -> None:
        self._number = _NUMBERS[sort]
        self._last: WatchDocument | None = None

    def view(self, document: WatchDocument) -> View:
        """The view of the next document. Its rates are None for the first one of a server."""
        server = document["server"]
        last, self._last = self._last, document
        if last is not None and last["server"]["began_ms"] != server["began_ms"]:
            last = None
        elapsed_s = 0.0 if last is None else (server["now_ms"] - last["server"]["now_ms"]) / 1000
        before = {} if last is None or elapsed_s <= 0 else {_key(each): each for each in last.get("versions", ())}
        counters = {_key(each): each for each in document.get("versions", ())}
        # Without the index, the versions that serve are all that is known.
        index = document.get("models") or [_ready_row(version) for version in counters.values()]
        rows = [_row(model, counters.get(_key(model)), before.get(_key(model)), elapsed_s) for model in index]
        rows.sort(key=lambda row: (-self._number(row), row.model, row.version))
        return View(
            server.get("name", ""),
            server.get("version", ""),
            "stopping" if server["exiting"] else "ready" if server["ready"] else "not ready",
            (server["now_ms"] - server["began_ms"]) / 1000,
            server.get("in_flight"),
            server.get("pending_bytes"),
            _sum(row.requests for row in rows),
            _sum(row.failures for row in rows),
            document.get("closed", {}),
            tuple(rows),
        )


def _key(entry: VersionDocument | ModelDocument) -> tuple[str, str]:
    return entry["name"], entry["version"]


def _ready_row(version: VersionDocument) -> ModelDocument:
    return {"name": version["name"], "version": version["version"], "state": "READY", "reason": ""}


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _row(model: ModelDocument, now: VersionDocument | None, before: VersionDocument | None, elapsed_s: float) -> Row:
    state = (model["state"] or "UNKNOWN").lower()
    if now is None:
        return Row(model["name"], model["version"], state, model["reason"])
    requests = failures = latency_ms = queue_ms = None
    if before is not None and _goes_on(before, now):
        successes = now["success"] - before["success"]
        requests = successes / elapsed_s
        failures = (now["failure"] - before["failure"]) / elapsed_s
        latency_ms, queue_ms = (
            (now["ns"][step] - before["ns"][step]) / successes / 1e6 if successes else None for step in (TOTAL, QUEUE)
        )
    p50_us, p99_us = now["quantiles_us"] or (None, None)
    return Row(
        model["name"],
        model["version"],
        state,
        model["reason"],
        sum(each["state"] == "ready" for each in now["instances"]),
        len(now["instances"]),
        sum(each["restarts"] for each in now["instances"]),
        now["queued"],
        {level: waiting for level, waiting in now["levels"].items() if waiting},
        requests,
        failures,
        latency_ms,
        queue_ms,
        None if p50_us is None else p50_us / 1000,
        None if p99_us is None else p99_us / 1000,
        now["memory"],
    )


def _goes_on(before: VersionDocument, now: VersionDocument) -> bool:
    """Whether the counters are those of before, and not of a version that was loaded since."""
    return (
        before["since_ms"] == now["since_ms"]
        and before["success"] <= now["success"]
        and before["failure"] <= now["failure"]
    )

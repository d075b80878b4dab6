# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Computes the rows of `pyruntime stats` from the statistics of a server. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

HEADINGS = ("Model", "Ver", "Requests", "Failed", "Executions", "Rows", "Queue", "Compute", "Total")
NUMBERS = HEADINGS[2:]
RATE = "Per second"


class Duration(TypedDict, total=False):
    """How often a step of inference happened, and its total time in nanoseconds."""

    count: int
    ns: int


class ModelStatistics(TypedDict):
    """The statistics of one version of a model, as far as they are shown."""

    name: str
    version: str
    execution_count: int
    inference_count: int
    inference_stats: dict[str, Duration]


Statistics = Sequence[ModelStatistics]


def rows(statistics: Statistics, before: Statistics = (), elapsed_s: float = 0.0) -> list[list[str]]:
    """A row for each version; with a rate, if `before` was `elapsed_s` seconds ago.

    The column "Rows" is the average batch size of an execution. Times are averages over successful requests: since
    `before`, or since the server started if there are none since.
    """
    earlier = {_key(model): model for model in before}
    return [_row(model, earlier.get(_key(model)), elapsed_s) for model in statistics]


def _row(model: ModelStatistics, before: ModelStatistics | None, elapsed_s: float) -> list[str]:
    successes = _count(model, "success")
    recent = successes - _count(before, "success") if before is not None else 0
    since = before if recent > 0 else None
    executions, inferences = int(model.get("execution_count", 0)), int(model.get("inference_count", 0))
    compute = [_average_us(model, since, f"compute_{step}") for step in ("input", "infer", "output")]
    row = [
        *_key(model),
        str(successes),
        str(_count(model, "fail")),
        str(executions),
        f"{inferences / executions:.1f}" if executions else "",
        _time(_average_us(model, since, "queue")),
        _time(sum(each for each in compute if each is not None) if None not in compute else None),
        _time(_average_us(model, since, "success")),
    ]
    if elapsed_s:
        row.append(f"{max(recent, 0) / elapsed_s:.1f}" if before is not None else "")
    return row


def _key(model: ModelStatistics) -> tuple[str, str]:
    return str(model["name"]), str(model["version"])


def _duration(model: ModelStatistics | None, name: str) -> tuple[int, int]:
    """The count and the nanoseconds of a step."""
    if model is None:
        return 0, 0
    duration = model["inference_stats"].get(name, {})
    # Some servers send 64-bit integers as JSON strings, because protobuf's JSON has them so.
    return int(duration.get("count", 0)), int(duration.get("ns", 0))


def _count(model: ModelStatistics | None, name: str) -> int:
    return _duration(model, name)[0]


def _average_us(model: ModelStatistics, since: ModelStatistics | None, name: str) -> float | None:
    (count, ns), (count_before, ns_before) = _duration(model, name), _duration(since, name)
    return (ns - ns_before) / (count - count_before) / 1000 if count > count_before else None


def _time(us: float | None) -> str:
    if us is None:
        return ""
    if us < 1000:
        return f"{us:.0f} us"
    return f"{us / 1000:.1f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"

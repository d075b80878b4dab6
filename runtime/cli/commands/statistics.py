# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The rows of `pyruntime stats`, from what a server says of its models. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HEADINGS = ("Model", "Version", "Requests", "Failed", "Executions", "Rows", "Queue", "Compute", "Total")
NUMBERS = HEADINGS[2:]
RATE = "Per second"

Statistics = Sequence[Mapping[str, Any]]


def rows(statistics: Statistics, before: Statistics = (), elapsed_s: float = 0.0) -> list[list[str]]:
    """A row for each version; with a rate, if `before` was `elapsed_s` seconds ago.

    Rows are those of an average execution. Times are averages over successful requests: since the server started, or
    since `before` where there were any.
    """
    earlier = {_key(model): model for model in before}
    return [_row(model, earlier.get(_key(model)), elapsed_s) for model in statistics]


def _row(model: Mapping[str, Any], before: Mapping[str, Any] | None, elapsed_s: float) -> list[str]:
    successes = _count(model, "success")
    recent = successes - _count(before, "success") if before is not None else 0
    since = before if recent > 0 else None
    executions, inferences = (int(model.get(key, 0)) for key in ("execution_count", "inference_count"))
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


def _key(model: Mapping[str, Any]) -> tuple[str, str]:
    return str(model["name"]), str(model["version"])


def _count(model: Mapping[str, Any] | None, name: str, key: str = "count") -> int:
    # A server's JSON may have 64-bit integers as texts.
    return int(model["inference_stats"].get(name, {}).get(key, 0)) if model is not None else 0


def _average_us(model: Mapping[str, Any], since: Mapping[str, Any] | None, name: str) -> float | None:
    count = _count(model, name) - _count(since, name)
    return (_count(model, name, "ns") - _count(since, name, "ns")) / count / 1000 if count > 0 else None


def _time(us: float | None) -> str:
    if us is None:
        return ""
    if us < 1000:
        return f"{us:.0f} us"
    return f"{us / 1000:.1f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"

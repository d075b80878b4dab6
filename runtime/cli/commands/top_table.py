# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Writes what `pyruntime top` shows, as cells of a table that fits into 80 columns. (pure)

Names of models are cut to what the other columns leave of the terminal; `--json` has all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyruntime.runtime.cli.commands.samples import Row, View

# Levels that are named in a cell; the others are added up.
LEVELS_NAMED_MAX = 3

# The least that is shown of the name of a model, in characters; and what stands between two columns.
NAME_LENGTH_MIN = 10
GAP = 1

_BEFORE = ("Model", "Ver", "State", "Inst", "Queue", "Req/s", "Fail/s")
_MEAN = ("Mean",)
_QUANTILES = ("p50", "p99")
_AFTER = ("Memory", "Restarts")
LEFT = ("Model", "State", "Queue")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def table_of(view: View, width: int) -> tuple[tuple[str, ...], list[list[str]]]:
    """The headings, and a row for each version, for a terminal with `width` columns.

    There are columns for quantiles if the server has some.
    """
    quantiles = any(row.p50_ms is not None for row in view.rows)
    headings = (*_BEFORE, *(_QUANTILES if quantiles else _MEAN), *_AFTER)
    rows = [_cells(row, quantiles) for row in view.rows]
    others = sum(max(map(len, column)) + GAP for column in list(zip(headings, *rows, strict=True))[1:])
    room = max(NAME_LENGTH_MIN, width - others)
    return headings, [[_cut(row[0], room), *row[1:]] for row in rows]


def _cut(name: str, room: int) -> str:
    return name if len(name) <= room else name[: room - 1] + "…"


def headline(view: View, url: str) -> str:
    """The line about the server."""
    parts = [f"pyruntime {view.version}".rstrip(), url, view.state, f"up {span(view.up_s)}"]
    if view.requests is not None and view.failures is not None:
        parts.append(f"{number(view.requests)} requests/s")
        if view.failures:
            parts.append(f"{number(view.failures)} failed/s")
    if view.in_flight is not None:
        parts.append(f"{max(0, view.in_flight - 1)} in flight")  # the request for the document is one
    if view.pending_bytes:
        parts.append(f"{size(view.pending_bytes)} arriving")
    return ", ".join(parts)


def notes(view: View) -> list[str]:
    """Lines below the table: why versions do not serve, and what the client may not see."""
    lines = [f"{row.model}: {row.reason}" for row in view.rows if row.reason and row.reason != "unloaded"]
    for api, header in sorted(view.closed.items()):
        if api in ("statistics", "model-repository"):
            lines.append(f"The API '{api}' needs the header '{header}': --header '{header}: <value>'.")
    return lines


def _cells(row: Row, quantiles: bool) -> list[str]:
    times = (row.p50_ms, row.p99_ms) if quantiles else (row.latency_ms,)
    return [
        row.model,
        row.version,
        row.state,
        f"{row.ready}/{row.instances}" if row.instances else "",
        _queue(row),
        number(row.requests),
        number(row.failures),
        *map(duration, times),
        "" if row.memory is None else size(row.memory),
        str(row.restarts) if row.instances else "",
    ]


def _queue(row: Row) -> str:
    """How many requests wait; behind it the levels that have some, as `<level>:<number>`."""
    if row.queued is None:
        return ""
    levels = list(row.levels.items())
    if not levels:
        return str(row.queued)
    named = [f"{level}:{waiting}" for level, waiting in levels[:LEVELS_NAMED_MAX]]
    more = sum(waiting for _, waiting in levels[LEVELS_NAMED_MAX:])
    return f"{row.queued} ({' '.join([*named, *([f'+{more}'] if more else [])])})"


def number(value: float | None) -> str:
    """A number with three digits, or all of its integer part."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 or value == 0 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def duration(ms: float | None) -> str:
    """A time in the unit that suits it."""
    if ms is None:
        return ""
    return f"{number(ms * 1000)}us" if ms < 1 else f"{number(ms)}ms" if ms < 1000 else f"{number(ms / 1000)}s"


def size(nbytes: int) -> str:
    """A number of bytes in the unit that suits it."""
    value, unit = float(nbytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f}{_UNITS[unit]}" if value >= 10 or not unit else f"{value:.1f}{_UNITS[unit]}"


def span(seconds: float) -> str:
    """A long time in its two largest units."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    found: Sequence[tuple[int, str]] = ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
    first = next((at for at, (count, _) in enumerate(found) if count), len(found) - 1)
    return " ".join(f"{count} {unit}" for count, unit in found[first : first + 2] if count) or "0 s"

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The cells of `pyruntime top`."""

import pytest

from pyruntime.runtime.cli.commands.samples import Row, View
from pyruntime.runtime.cli.commands.top_table import (
    GAP,
    NAME_LENGTH_MIN,
    duration,
    headline,
    notes,
    number,
    size,
    span,
    table_of,
)


def view(*rows, **changes):
    made = {
        "name": "triton", "version": "1.0", "state": "ready", "up_s": 5.0, "in_flight": 3, "pending_bytes": 0,
        "requests": 120.0, "failures": 0.0, "closed": {},
    }  # fmt: skip
    return View(**(made | changes), rows=rows)


BUSY = Row("m", "1", "ready", "", 1, 2, 3, 8, {}, 120.0, 0.5, 2.5, 0.1, None, None, 4096)


def test_row():
    """A row with all that is known of a version."""
    headings, (cells,) = table_of(view(BUSY), 80)
    assert dict(zip(headings, cells, strict=True)) == {
        "Model": "m", "Ver": "1", "State": "ready", "Inst": "1/2", "Queue": "8", "Req/s": "120", "Fail/s": "0.50",
        "Mean": "2.50ms", "Memory": "4.0KiB", "Restarts": "3",
    }  # fmt: skip


def test_nothing_known():
    """A version without numbers has a name and a state."""
    _, (cells,) = table_of(view(Row("m", "", "unavailable", "no")), 80)
    assert cells == ["m", "", "unavailable", *[""] * 7]


def test_quantiles():
    """Where the server has quantiles they take the place of the mean."""
    headings, (first, second) = table_of(view(BUSY, Row("n", "1", "ready", p50_ms=1.0, p99_ms=20.0)), 80)
    assert "Mean" not in headings
    assert first[headings.index("p50")] == ""
    assert (second[headings.index("p50")], second[headings.index("p99")]) == ("1.00ms", "20.0ms")


@pytest.mark.parametrize(
    ("levels", "cell"),
    [({}, "8"), ({"1": 8}, "8 (1:8)"), ({"1": 1, "2": 2, "4": 1, "5": 3, "6": 1}, "8 (1:1 2:2 4:1 +4)")],
)
def test_levels(levels, cell):
    """Behind the number of waiting requests stand the first levels that have some, and what the others have."""
    headings, (cells,) = table_of(view(Row("m", "1", "ready", queued=8, levels=levels)), 80)
    assert cells[headings.index("Queue")] == cell


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("quantile", [None, 123.4])
def test_width(width, quantile):
    """A long name is cut, so that the table fits."""
    row = Row(
        "m" * 300, "12", "unavailable", "", 10, 12, 99, 9999, {}, 9999.0, 99.9, 99.9, 1.0, quantile, quantile, 1 << 30
    )
    headings, rows = table_of(view(row), width)
    columns = zip(headings, *rows, strict=True)
    assert sum(max(map(len, column)) for column in columns) + GAP * (len(headings) - 1) <= width
    assert rows[0][0].startswith("m" * (NAME_LENGTH_MIN - 1))
    assert rows[0][0].endswith("…")


def test_headline():
    """What the server does, in one line; the request of top itself is not in flight."""
    assert headline(view(), "http://x") == "pyruntime 1.0, http://x, ready, up 5 s, 120 requests/s, 2 in flight"
    more = view(failures=2.0, pending_bytes=2048, in_flight=1)
    assert headline(more, "u").endswith("120 requests/s, 2.00 failed/s, 0 in flight, 2.0KiB arriving")
    closed = view(version="", requests=None, failures=None, in_flight=None, pending_bytes=None)
    assert headline(closed, "u") == "pyruntime, u, ready, up 5 s"


def test_notes():
    """Why models do not serve, and which header is missing; not that one was unloaded on purpose."""
    rows = Row("a", "1", "unavailable", "no model.py"), Row("b", "1", "unavailable", "unloaded")
    assert notes(view(*rows, closed={"statistics": "key", "trace": "key"})) == [
        "a: no model.py",
        "The API 'statistics' needs the header 'key': --header 'key: <value>'.",
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), (0.0, "0"), (0.256, "0.26"), (12.34, "12.3"), (123.4, "123"), (12345.6, "12346")]
)
def test_numbers(value, text):
    """Three digits, or all of the integer part."""
    assert number(value) == text


@pytest.mark.parametrize(
    ("ms", "text"), [(None, ""), (0.0, "0us"), (0.0123, "12.3us"), (12.3, "12.3ms"), (1500.0, "1.50s")]
)
def test_times(ms, text):
    """The unit suits the time."""
    assert duration(ms) == text


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0B"), (1023, "1023B"), (1536, "1.5KiB"), (10 << 20, "10MiB"), (5 << 50, "5120TiB")]
)
def test_sizes(nbytes, text):
    """The unit suits the size."""
    assert size(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.9, "59 s"), (60, "1 min"), (3725, "1 h 2 min"), (90000, "1 d 1 h"), (-1, "0 s")],
)
def test_spans(seconds, text):
    """The two largest units."""
    assert span(seconds) == text

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.observe.tables import CELL_CHARS_MAX, backend_table, column_widths, model_table, table


def test_table_is_as_wide_as_its_cells():
    """Borders, one space around each cell, columns as wide as their cells."""
    assert model_table([("add_sub", "1", "READY"), ("b", "12", "UNAVAILABLE: no")]) == (
        "+---------+---------+-----------------+\n"
        "| Model   | Version | Status          |\n"
        "+---------+---------+-----------------+\n"
        "| add_sub | 1       | READY           |\n"
        "| b       | 12      | UNAVAILABLE: no |\n"
        "+---------+---------+-----------------+"
    )


def test_table_without_rows():
    """Headers alone stand between two borders."""
    assert model_table([]) == (
        "+-------+---------+--------+\n| Model | Version | Status |\n+-------+---------+--------+"
    )


def test_python_comes_first_and_long_cells_go_on_below():
    """The widest column gives way, and its cells are cut at its width, wherever that is."""
    backends = [("b", "/b/model.py", {}), ("python", "/p", {"a": "1", "default-max-batch-size": "4"}), ("a", "/a", {})]
    assert backend_table(backends, width_max=50) == (
        "+---------+-------------+------------------------+\n"
        "| Backend | Path        | Config                 |\n"
        "+---------+-------------+------------------------+\n"
        '| python  | /p          | {"cmdline":{"a":"1","d |\n'
        '|         |             | efault-max-batch-size" |\n'
        '|         |             | :"4"}}                 |\n'
        '| a       | /a          | {"cmdline":{}}         |\n'
        '| b       | /b/model.py | {"cmdline":{}}         |\n'
        "+---------+-------------+------------------------+"
    )


def test_prose_is_cut_at_spaces():
    """A cell that is too wide is cut at the last space that fits, and within a word that is too wide."""
    assert table(["Status"], [["failed to load abcdefghijkl b"]], width_max=14) == (
        "+------------+\n"
        "| Status     |\n"
        "+------------+\n"
        "| failed to  |\n"
        "| load       |\n"
        "| abcdefghij |\n"
        "| kl b       |\n"
        "+------------+"
    )


def test_line_ends_begin_a_line_and_nothing_else_acts():
    """A cell of several lines has them one below the other; an escape sequence is shown, not obeyed."""
    assert table(["S"], [["a\n\nb\x1b[0m"]]) == (
        "+------------+\n"
        "| S          |\n"
        "+------------+\n"
        "| a          |\n"
        "|            |\n"
        "| b\\u001b[0m |\n"
        "+------------+"
    )


def test_long_cell_is_cut():
    """A cell of any length takes a bounded number of lines."""
    text = table(["S"], [["x" * (CELL_CHARS_MAX + 1)]], width_max=CELL_CHARS_MAX * 2)
    assert f"| {'x' * CELL_CHARS_MAX} ... (cut: {CELL_CHARS_MAX + 1} characters) |" in text


@pytest.mark.parametrize(
    ("needs", "room", "widths"),
    [
        ([3, 4], 10, [3, 4]),
        ([3, 40, 50], 23, [3, 10, 10]),
        ([50, 40, 3], 24, [11, 10, 3]),
        ([5, 5], 0, [1, 1]),
        ([0, 5], 10, [1, 5]),
    ],
)
def test_room_is_shared(needs, room, widths):
    """A column that needs little gets it, the others share evenly, and each has at least 1."""
    assert column_widths(needs, room) == widths


@given(st.lists(st.lists(st.text(max_size=30), min_size=2, max_size=2), max_size=5), st.integers(20, 100))
def test_every_line_is_equally_wide_and_within_the_limit(rows, width_max):
    """For arbitrary cells, the table is a rectangle that fits."""
    lines = table(["A", "B"], rows, width_max).split("\n")
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) <= width_max
    assert all(line.isprintable() for line in lines)

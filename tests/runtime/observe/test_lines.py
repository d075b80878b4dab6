# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The output of stubs, cut into lines."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.observe.lines import LINE_BYTES_MAX, LineSplitter


def lines(*pieces):
    splitter = LineSplitter()
    return [line for piece in pieces for line in splitter.feed(piece)] + splitter.end()


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (b"", []),
        (b"one\n", ["one"]),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\r\ntwo", ["one", "two"]),
        (b"\n\n", ["", ""]),
        (b"no newline", ["no newline"]),
        ("größe\n".encode(), ["größe"]),
        (b"\xff\xfe\n", ["\\xff\\xfe"]),
        (b"\xff", ["\\xff"]),
        (b"a\rb\n", ["a\rb"]),
    ],
    ids=repr,
)
class TestLines:
    def test_whole(self, printed, expected):
        """Lines come without their newlines; bytes that are no UTF-8 are escaped."""
        assert lines(printed) == expected

    def test_one_byte_at_a_time(self, printed, expected):
        """However the bytes come, the lines are the same."""
        assert lines(*[printed[at : at + 1] for at in range(len(printed))]) == expected


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_any_cut(printed, cuts):
    """However the bytes are cut, the lines are the same."""
    bounds = [0, *sorted(min(cut, len(printed)) for cut in cuts), len(printed)]
    assert lines(*[printed[a:b] for a, b in pairwise(bounds)]) == lines(printed)


def test_reset():
    """A line that has begun is forgotten."""
    splitter = LineSplitter()
    assert splitter.feed(b"one\ntw") == ["one"]
    splitter.reset()
    assert splitter.feed(b"three\n") == ["three"]


class TestLimits:
    def test_a_line_that_never_ends(self):
        """A long line is logged in pieces, and no more than a piece is kept."""
        splitter = LineSplitter()
        heard = splitter.feed(b"x" * (3 * LINE_BYTES_MAX))
        assert [len(line) for line in heard] == [LINE_BYTES_MAX] * 2
        assert splitter.feed(b"x") == ["x" * LINE_BYTES_MAX]
        assert splitter.end() == ["x"]

    def test_a_long_line_that_ends(self):
        """No line is longer than the limit, whether its newline has come or not."""
        heard = lines(b"x" * (3 * LINE_BYTES_MAX) + b"\n")
        assert all(len(line) <= LINE_BYTES_MAX for line in heard)
        assert "".join(heard) == "x" * (3 * LINE_BYTES_MAX)

    def test_characters_are_not_cut(self):
        """A piece ends between two characters."""
        heard = lines("ä".encode() * LINE_BYTES_MAX + b"x" + "ä".encode() * LINE_BYTES_MAX)
        assert "\\x" not in "".join(heard)


def test_ends_once():
    """The last line is told once."""
    splitter = LineSplitter()
    splitter.feed(b"rest")
    assert splitter.end() == ["rest"]
    assert splitter.end() == []

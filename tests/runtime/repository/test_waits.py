# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which wait would never end."""

import pytest

from pyruntime.runtime.repository.waits import WaitGraph


def graph(text):
    """A graph of the edges that `text` tells: `ab bc` for a waits for b, and b for c."""
    made = WaitGraph()
    for waiter, target in text.split():
        made.add(waiter, target)
    return made


@pytest.mark.parametrize(
    ("edges", "waiter", "target", "expected"),
    [
        ("", "a", "b", ""),
        ("", "a", "a", "aa"),
        ("ba", "a", "b", "aba"),
        ("bc ca", "a", "b", "abca"),
        # Waits of others do no harm, even if they form a cycle.
        ("bc cd", "a", "b", ""),
        ("ca da", "a", "b", ""),
        ("bc cb", "a", "b", ""),
        # One of several ways round is enough.
        ("bc bd da", "a", "b", "abda"),
        ("bc bd ca", "a", "b", "abca"),
    ],
)
def test_cycle(edges, waiter, target, expected):
    """A wait that leads back to its waiter is a cycle, reported as the path of the cycle."""
    assert graph(edges).cycle(waiter, target) == list(expected)


def test_removed():
    """A wait that was removed closes no cycle; of two equal waits the other still does."""
    made = WaitGraph()
    first, second = made.add("b", "a"), made.add("b", "a")
    made.remove(first)
    assert made.cycle("a", "b") == ["a", "b", "a"]
    made.remove(second)
    assert made.cycle("a", "b") == []
    assert repr(made) == "<WaitGraph []>"


def test_ended():
    """A load that has ended waits for nothing, and its waits do not affect the next load of the model."""
    made = WaitGraph()
    old = made.add("b", "a")
    made.end("b")
    assert made.cycle("a", "b") == []
    new = made.add("b", "a")
    made.remove(old)
    assert made.cycle("a", "b") == ["a", "b", "a"]
    made.end("b")
    made.remove(new)
    made.end("b")
    assert repr(made) == "<WaitGraph []>"


def test_repr():
    """A graph shows its edges."""
    assert repr(graph("ab ac bc")) == "<WaitGraph [a -> b, a -> c, b -> c]>"

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Turns: how many requests have one, and in which order the others follow."""

from pyruntime.runtime.inference.turns import Turns


class Bytes:
    """A claim that holds nothing."""

    held = 0
    waits = False

    def turns_changed(self):
        pass


def test_order():
    """So many have their turn; the others follow in order, as turns end."""
    turns, begun = Turns(2), []
    first, second, third, fourth = (turns.turn() for _ in range(4))
    assert first.take(Bytes(), lambda: begun.append(1))
    assert first.take(Bytes(), lambda: begun.append(1))  # it has its turn
    assert second.take(Bytes(), lambda: begun.append(2))
    assert not third.take(Bytes(), lambda: begun.append(3))
    assert not fourth.take(Bytes(), lambda: begun.append(4))
    assert begun == []
    second.end()
    second.end()
    assert begun == [3]
    first.end()
    assert begun == [3, 4]
    third.end()
    fourth.end()
    assert turns.free == 2


def test_end_of_a_wait():
    """A request that no longer waits is passed over."""
    turns, begun = Turns(1), []
    first, second, third = (turns.turn() for _ in range(3))
    assert first.take(Bytes(), lambda: None)
    assert not second.take(Bytes(), lambda: begun.append(2))
    assert not third.take(Bytes(), lambda: begun.append(3))
    second.end()
    first.end()
    assert begun == [3]
    assert repr(turns) == "<Turns: 0 free, 0 wait>"


def test_turns_that_end_at_once():
    """However many end as soon as they begin, they follow each other without recursion."""
    turns, begun = Turns(1), []
    first = turns.turn()
    assert first.take(Bytes(), lambda: None)
    for number in range(5000):
        turn = turns.turn()

        def begin(turn=turn, number=number):
            begun.append(number)
            turn.end()

        assert not turn.take(Bytes(), begin)
    first.end()
    assert begun == list(range(5000))
    assert turns.free == 1

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The credits of steps."""

from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.ensembles.credits import StepCredits


def test_in_order():
    """Starts beyond the limit wait for each other; steps have credits of their own."""
    credits = StepCredits(1)
    assert credits.take(0, "a")
    assert not credits.take(0, "b")
    assert not credits.take(0, "c")
    assert credits.take(1, "d")
    assert repr(credits) == "<StepCredits 1 [2 taken, 2 waiting]>"
    assert credits.give_back(0) == "b"
    assert credits.withdraw(0, "c")
    assert not credits.withdraw(0, "c")
    assert credits.give_back(0) is None
    assert credits.take(0, "e")


@given(st.integers(1, 3), st.lists(st.tuples(st.sampled_from(["take", "give", "withdraw"]), st.integers(0, 9))))
def test_never_more_than_the_limit(limit, actions):
    """Whatever happens, as many are under way as may be, and none waits while there is a credit."""
    credits = StepCredits(limit)
    running, waiting = [], []
    for number, (action, choice) in enumerate(actions):
        if action == "take":
            (running if credits.take(0, number) else waiting).append(number)
        elif action == "give" and running:
            running.pop(choice % len(running))
            following = credits.give_back(0)
            assert following == (waiting[0] if waiting else None)
            if waiting:
                running.append(waiting.pop(0))
        elif action == "withdraw" and waiting:
            assert credits.withdraw(0, waiting.pop(choice % len(waiting)))
        assert len(running) <= limit
        assert not waiting or len(running) == limit

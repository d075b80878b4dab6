# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The levels that are shown of a queue."""

from pyruntime.runtime.observe.level_statistics import LEVELS_SHOWN_MAX, LevelStatistics, shown_levels


def level(waiting):
    made = LevelStatistics()
    made.waiting, made.taken_count, made.wait_s, made.rejected_count, made.timed_out_count = waiting, 10, 0.5, 3, 4
    return made


def test_those_that_had_no_request():
    """Each level of the model is there, with zeros where it had no request."""
    shown = shown_levels(3, {2: level(7)})
    assert {name: each.waiting for name, each in shown.items()} == {"1": 0, "2": 7, "3": 0}
    second = shown["2"]
    assert (second.taken_count, second.wait_s, second.rejected_count, second.timed_out_count) == (10, 0.5, 3, 4)


def test_too_many():
    """The number of names is bounded: levels above the limit are added up."""
    shown = shown_levels(
        1 << 32, {1: level(1), LEVELS_SHOWN_MAX: level(2), LEVELS_SHOWN_MAX + 1: level(4), 9999: level(8)}
    )
    assert len(shown) == LEVELS_SHOWN_MAX + 1
    assert (shown["1"].waiting, shown[str(LEVELS_SHOWN_MAX)].waiting, shown["more"].waiting) == (1, 2, 12)
    assert shown["more"].taken_count == 20

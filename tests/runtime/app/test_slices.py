# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What is made in slices leaves the event loop to others in between."""

import asyncio
from itertools import count, islice, pairwise

import pytest

from pyruntime.runtime.app.slices import SLICE_PARTS, in_slices
from pyruntime.utils.errors import InferenceError


def run(parts):
    """(what came of the parts, how many parts there were in each turn of the event loop)."""
    results, made, turns = [], [], []

    def noting():
        for part in parts:
            made.append(part)
            yield part

    async def main():
        async with asyncio.TaskGroup() as tasks:
            in_slices(lambda: tasks, noting(), results.append, "make it")
            while not results:
                turns.append(len(made))
                await asyncio.sleep(0)

    asyncio.run(main())
    (result,) = results
    return result, turns


@pytest.mark.parametrize("number", [0, 1, SLICE_PARTS - 1])
def test_a_few(number):
    """They are made at once, where there is no event loop, too."""
    results = []
    in_slices(lambda: pytest.fail("it needs no task"), iter(range(number)), results.append, "make it")
    assert results == [list(range(number))]


@pytest.mark.parametrize("number", [SLICE_PARTS, SLICE_PARTS + 1, 10 * SLICE_PARTS + 3])
def test_many(number):
    """Each turn of the event loop has a slice of them, and they come together and in order."""
    result, turns = run(range(number))
    assert result == list(range(number))
    assert len(turns) >= number // SLICE_PARTS
    assert all(after - before <= SLICE_PARTS for before, after in pairwise(turns))


@pytest.mark.parametrize(
    ("failure", "message"), [(InferenceError("no"), "no"), (ValueError("x"), "the server failed to make it")]
)
def test_a_part_that_fails(failure, message):
    """The result is an error; what was not expected is no more than that, and in the log."""

    def parts():
        yield from islice(count(), 2 * SLICE_PARTS)
        raise failure

    result, _ = run(parts())
    assert isinstance(result, InferenceError)
    assert result.message == message

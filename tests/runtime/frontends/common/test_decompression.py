# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The decompression of one body: in steps, each within the budget."""

import asyncio
import gzip
import random
from functools import partial

import pytest

from pyruntime.runtime.frontends.common.compression import PIECE_BYTES_MAX
from pyruntime.runtime.frontends.common.decompression import PIECES_AT_ONCE_MAX, PIECES_MAX, Decompression
from pyruntime.runtime.inference.pending_bytes import PendingBytes, PendingBytesError
from pyruntime.runtime.inference.threads import DECOMPRESSED_AT_ONCE_MAX
from pyruntime.runtime.inference.turns import Turns
from pyruntime.utils.errors import InferenceError

MIB = 1 << 20
# The longest body that is decompressed at once. Its end is found behind its last piece.
AT_ONCE_BYTES = (PIECES_AT_ONCE_MAX - 1) * PIECE_BYTES_MAX
STEP_BYTES = PIECES_MAX * PIECE_BYTES_MAX


class Budget(PendingBytes):
    """With turns for two bodies."""

    def __init__(self, limit):
        self.turns = Turns(2)
        super().__init__(limit, self.turns)


class Body:
    """One body whose decompression notes its outcomes."""

    def __init__(self, tasks, pending, compressed, limit=64 * MIB, counted=False):
        self.pending = pending
        self.claim = pending.share().claim()
        if counted:
            self.claim.take(len(compressed))
        self.outcomes = []
        self.turn = pending.turns.turn()
        self.decompression = Decompression(
            tasks, self.claim, partial(self.turn.take, self.claim), compressed, "gzip", limit, self.outcomes.append
        )


def run(act):
    """Run `act(tasks)` on an event loop, and wait for the threads."""

    async def main():
        async with asyncio.TaskGroup() as tasks:
            act(tasks)

    asyncio.run(main())


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("size", [0, 1, AT_ONCE_BYTES - 1, AT_ONCE_BYTES])
def test_small_body(size, counted):
    """A small body that becomes no large one is decompressed at once; its claim holds the bytes that it has become."""
    body = Body(None, Budget(16 * MIB), gzip.compress(bytes(size)), counted=counted)
    body.decompression.begin()
    assert body.outcomes == [bytes(size)]
    assert body.claim.held == body.pending.used == size


@pytest.mark.parametrize(
    "data", [bytes(5 * MIB), random.Random(1).randbytes(2 * DECOMPRESSED_AT_ONCE_MAX)], ids=["zeros", "noise"]
)
def test_large_body(data):
    """Threads decompress the rest, or all, of a larger one."""
    pending = Budget(16 * MIB)

    def act(tasks):
        act.body = Body(tasks, pending, gzip.compress(data))
        act.body.decompression.begin()
        assert act.body.outcomes == []

    run(act)
    assert act.body.outcomes == [data]
    assert pending.used == len(data)


@pytest.mark.parametrize("cut", [False, True])
def test_refusals(cut):
    """A body above its limit, or a damaged one, is refused; no more than a step beyond the limit was counted."""
    pending = Budget(64 * MIB)
    compressed = gzip.compress(bytes(8 * MIB))

    def act(tasks):
        act.body = Body(tasks, pending, compressed[:-1] if cut else compressed, 8 * MIB if cut else 2 * MIB)
        act.body.decompression.begin()

    run(act)
    ((failure,),) = (act.body.outcomes,)
    assert "its end is missing" in failure.message if cut else "2097152 bytes once decompressed" in failure.message
    assert act.body.claim.held <= (8 if cut else 2) * MIB + STEP_BYTES


def test_more_than_a_connection_may_have():
    """A body that outgrows its connection's share is refused where it does."""
    pending = Budget(4 * MIB)

    def act(tasks):
        act.body = Body(tasks, pending, gzip.compress(bytes(8 * MIB)))
        act.body.decompression.begin()

    run(act)
    (failure,) = act.body.outcomes
    assert isinstance(failure, PendingBytesError)
    assert act.body.claim.held <= 2 * MIB


def test_body_that_waits():
    """While there is no room nothing is decompressed; with room it goes on."""
    pending = Budget(4 * MIB)
    other, third = pending.share().claim(), pending.share().claim()
    other.take(2 * MIB)
    third.take(2 * MIB)

    def act(tasks):
        act.body = Body(tasks, pending, gzip.compress(bytes(MIB)))
        act.body.decompression.begin()
        assert act.body.claim.waits
        assert (act.body.outcomes, act.body.claim.held) == ([], 0)
        other.end()

    run(act)
    assert act.body.outcomes == [bytes(MIB)]


def test_body_that_waits_in_vain():
    """A body that waits for too long is refused."""
    pending = Budget(2 * MIB)
    other, third = pending.share().claim(), pending.share().claim()
    other.take(MIB)
    third.take(MIB)
    body = Body(None, pending, gzip.compress(b"x"))
    body.decompression.begin()
    pending.check(0.0)
    assert body.outcomes == []
    pending.check(60.0)
    (failure,) = body.outcomes
    assert isinstance(failure, InferenceError)


def test_client_that_is_gone():
    """After the end nothing is decompressed any more, and nothing is reported."""
    pending = Budget(256 * MIB)

    def act(tasks):
        body = act.body = Body(tasks, pending, gzip.compress(bytes(64 * MIB)))
        body.decompression.begin()
        body.decompression.end()
        body.claim.end()

    run(act)
    assert act.body.outcomes == []
    assert pending.used == 0
    assert len(act.body.decompression._body) <= AT_ONCE_BYTES + PIECE_BYTES_MAX + STEP_BYTES


def test_turns():
    """Only a few large bodies are in memory at a time; the others wait, and take no room."""
    pending = Budget(64 * MIB)
    compressed = gzip.compress(bytes(2 * MIB))

    def act(tasks):
        act.bodies = [Body(tasks, pending, compressed) for _ in range(5)]
        for body in act.bodies:
            body.decompression.begin()

    run(act)
    assert [len(body.outcomes) for body in act.bodies] == [1, 1, 0, 0, 0]
    # The others have made their first step, which is at once.
    assert pending.used <= 2 * 2 * MIB + 3 * (AT_ONCE_BYTES + PIECE_BYTES_MAX)
    assert {len(body.decompression._body) for body in act.bodies[2:]} == {AT_ONCE_BYTES + PIECE_BYTES_MAX}

    def go_on(tasks):
        for body in act.bodies:
            body.decompression._tasks = tasks
        act.bodies[0].turn.end()
        act.bodies[3].turn.end()  # its client is gone

    run(go_on)
    assert [len(body.outcomes) for body in act.bodies] == [1, 1, 1, 0, 0]

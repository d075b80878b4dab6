# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Streams that are kept while they pass, and replayed."""

import asyncio

import pytest

from pyruntime.runtime.caching import streams
from pyruntime.runtime.caching.entry import decode_stream
from pyruntime.runtime.caching.local import AT_ONCE_MAX
from pyruntime.runtime.caching.streams import REPLAYED_AT_ONCE, Replay, StreamKeeper, StreamRoom
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.requests.types import InferResponse, OutputPlace, OutputTensor
from pyruntime.utils.errors import InferenceError
from pyruntime.utils.flow_control import RESPONSES_AHEAD_MAX
from pyruntime.utils.request_codec import RequestOptions

from .threads import Threads


def job_of(respond):
    return Job("id", RequestOptions(), [], 1, None, [], respond, 0)


def response_of(size=1, place=None):
    return InferResponse("m", 1, "id", [OutputTensor("OUT", "INT8", [size], b"a" * size, place=place)])


class Kept:
    """A stream on its way to a client."""

    def __init__(self, room=None):
        self.got = []
        self.entries = []
        self.room = room or StreamRoom()
        self.threads = Threads()
        self.job = job_of(None)
        self.keeper = StreamKeeper(self.respond, self.job, self.threads, self.room, self.end)

    def respond(self, outcome, final):
        self.got.append((outcome, final))

    def end(self, entry, then):
        self.entries.append(entry)
        then()

    @property
    def sizes(self):
        """The sizes of the outputs in the entry, None for an end."""
        (entry,) = self.entries
        return [outputs and len(outputs[0].data) for outputs in decode_stream(memoryview(entry))]


def test_kept():
    """Each response passes at once; the entry is complete at the end, and the room is free."""
    kept = Kept()
    first, second = response_of(1), response_of(2)
    kept.keeper(first, False)
    assert (kept.got, kept.room.used) == ([(first, False)], 1)
    kept.keeper(second, True)
    assert kept.got == [(first, False), (second, True)]
    assert (kept.sizes, kept.room.used) == ([1, 2], 0)


def test_bare_end():
    """An end without a response is kept as such; a stream may have nothing else."""
    kept = Kept()
    kept.keeper(None, True)
    assert (kept.sizes, kept.got) == ([None], [(None, True)])


def test_large_responses():
    """A thread copies a large response; what comes meanwhile waits, and keeps its order."""

    async def run():
        kept = Kept()
        sizes = [1, AT_ONCE_MAX + 1, 2, AT_ONCE_MAX + 2, 3]
        sent = [response_of(size) for size in sizes]
        for response in sent:
            kept.keeper(response, False)
        kept.keeper(None, True)
        assert [outcome for outcome, _ in kept.got] == sent[:1]
        kept.threads.go()
        assert [outcome for outcome, _ in kept.got] == sent[:3]
        kept.threads.go()
        assert kept.got == [*((response, False) for response in sent), (None, True)]
        assert kept.sizes == [*sizes, None]

    asyncio.run(run())


def test_thread_that_fails():
    """The response passes, and the stream is not kept."""

    async def run():
        kept = Kept()
        response = response_of(AT_ONCE_MAX + 1)
        response.outputs[0].shape = None  # cannot be encoded
        kept.keeper(response, True)
        kept.threads.go()
        assert (kept.got, kept.entries, kept.room.used) == ([(response, True)], [None], 0)

    asyncio.run(run())


@pytest.mark.parametrize("outcome", [InferenceError("no"), response_of(place=OutputPlace("r", 0, 1, None))])
def test_not_kept(outcome):
    """A stream with an error, or with outputs in its client's memory, passes and is not kept."""
    kept = Kept()
    kept.keeper(response_of(), False)
    kept.keeper(outcome, False)
    kept.keeper(None, True)
    assert ([final for _, final in kept.got], kept.entries, kept.room.used) == ([False, False, True], [None], 0)


def test_cancelled():
    """The model of a cancelled request may have ended early."""
    kept = Kept()
    kept.job.cancelled = True
    kept.keeper(None, True)
    assert kept.entries == [None]


@pytest.mark.parametrize(
    ("limit", "value"), [("STREAM_RESPONSES_MAX", 2), ("STREAM_BYTES_MAX", 20), ("STREAMS_BYTES_MAX", 20)]
)
def test_limits(monkeypatch, limit, value):
    """A stream that is longer than a limit passes and is not kept; one at the limit is."""
    monkeypatch.setattr(streams, limit, value)
    room = StreamRoom()
    for count in (2, 3):
        kept = Kept(room)
        for _ in range(count - 1):
            kept.keeper(response_of(10), False)
        kept.keeper(response_of(10), True)
        assert len(kept.got) == count
        assert (kept.entries == [None]) is (count == 3)
        assert room.used == 0


def test_room_is_shared():
    """Streams of one model share their room, and each gives back what it has taken."""
    room = StreamRoom()
    room.used = streams.STREAMS_BYTES_MAX - 10
    first, second = Kept(room), Kept(room)
    first.keeper(response_of(10), False)
    second.keeper(response_of(1), True)
    assert second.entries == [None]
    first.keeper(None, True)
    assert first.sizes == [10, None]
    assert room.used == streams.STREAMS_BYTES_MAX - 10


class Replayed:
    """A stream that is replayed to a client, which takes responses when it is told to, or at once."""

    def __init__(self, stream, takes=False, fails_at=None):
        self.got = []
        self.ends = []
        self.takes = takes
        self.fails_at = fails_at
        self.job = job_of(self.respond)
        self.replay = Replay(self.job, stream, self.make, self.ends.append)

    def make(self, outputs):
        if len(self.got) == self.fails_at:
            raise InferenceError("no room")
        return InferResponse("m", 1, "id", outputs)

    def respond(self, outcome, final):
        self.got.append((outcome, final))
        if self.takes and isinstance(outcome, InferResponse):
            outcome.take()
            outcome.release()


def stream_of(count, end=True):
    return [*([OutputTensor("OUT", "INT32", [1], number.to_bytes(4, "little"))] for number in range(count))] + (
        [None] if end else []
    )


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("end", [True, False])
def test_replay(takes, end):
    """All responses, in their order, and the last one as it was; some in each turn of the event loop."""

    async def run():
        count = 3 * REPLAYED_AT_ONCE
        made = Replayed(stream_of(count, end), takes)
        made.replay.go_on()
        assert len(made.got) == REPLAYED_AT_ONCE
        for _ in range(3):
            await asyncio.sleep(0)
        assert [final for _, final in made.got] == [False] * (count if end else count - 1) + [True]
        responses = [outcome for outcome, _ in made.got if outcome is not None]
        assert [int.from_bytes(each.outputs[0].data, "little") for each in responses] == list(range(count))
        assert made.ends == [None]

    asyncio.run(run())


def test_slow_client():
    """The replay waits for a client that takes nothing, and goes on with what it takes."""

    async def run():
        made = Replayed(stream_of(RESPONSES_AHEAD_MAX + 2))
        made.replay.go_on()
        for _ in range(RESPONSES_AHEAD_MAX):
            await asyncio.sleep(0)
        assert len(made.got) == RESPONSES_AHEAD_MAX
        made.got[0][0].take()
        made.got[0][0].release()
        assert len(made.got) == RESPONSES_AHEAD_MAX + 1
        made.got[1][0].release()
        assert len(made.got) == RESPONSES_AHEAD_MAX + 2
        made.got[2][0].release()
        assert (made.got[-1], made.ends) == ((None, True), [None])

    asyncio.run(run())


def test_failure():
    """A replay that fails ends once, with the failure; also where a response cannot be made."""

    async def run():
        failure = InferenceError("gone")
        made = Replayed(stream_of(RESPONSES_AHEAD_MAX + 1))
        made.replay.go_on()
        made.replay.fail(failure)
        made.replay.fail(InferenceError("again"))
        assert (made.got[-1], made.ends) == ((failure, True), [failure])
        await asyncio.sleep(0)
        assert len(made.got) == REPLAYED_AT_ONCE + 1
        made = Replayed(stream_of(5), fails_at=2)
        made.replay.go_on()
        assert [str(outcome) for outcome, final in made.got if final] == ["no room"]
        assert (len(made.got), len(made.ends)) == (3, 1)

    asyncio.run(run())


def test_failure_after_the_end():
    """Nothing comes behind the last response."""
    made = Replayed(stream_of(1))
    made.replay.go_on()
    made.replay.fail(InferenceError("late"))
    assert (len(made.got), made.ends) == (2, [None])

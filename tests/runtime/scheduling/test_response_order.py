# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The order of responses: rules, and any order of any responses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.execution.job import Job, Relay
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.runtime.scheduling import response_order
from pyruntime.runtime.scheduling.response_order import HELD_MAX, ResponseOrder
from pyruntime.utils import flow_control
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import RequestOptions


class Clients:
    """Jobs whose clients note what they get, in the order in which they get it."""

    def __init__(self):
        self.got = []
        self.room = []
        self.order = ResponseOrder(lambda: self.room.append(len(self.got)))

    def begin(self, number):
        job = Job("", RequestOptions(), [], 1, None, [], lambda outcome, final: self.got.append((number, outcome)), 0)
        self.order.begin(job)
        return job


def test_early():
    """A response that is early is held until those before it were given."""
    clients = Clients()
    first, second = clients.begin(1), clients.begin(2)
    second.respond("b", True)
    assert clients.got == []
    first.respond("a", True)
    assert clients.got == [(1, "a"), (2, "b")]


def test_several_responses():
    """The responses of the first request go out as they come; the next has its turn after the last one."""
    clients = Clients()
    first, second = clients.begin(1), clients.begin(2)
    first.respond("a", False)
    second.respond("b", False)
    assert clients.got == [(1, "a")]
    first.respond(None, True)
    assert clients.got == [(1, "a"), (1, None), (2, "b")]
    second.respond("c", True)
    assert clients.got[3:] == [(2, "c")]


def test_once():
    """A request that queues again has the place that it had."""
    clients = Clients()
    first, second = clients.begin(1), clients.begin(2)
    clients.order.begin(first)
    second.respond("b", True)
    first.respond("a", True)
    assert clients.got == [(1, "a"), (2, "b")]


class Late(Relay):
    """Passes outcomes on when the test says so."""

    def __init__(self, client):
        super().__init__(client)
        self.outcomes = []

    def __call__(self, outcome, final):
        self.outcomes.append((outcome, final))


def test_behind_a_relay():
    """A response has its turn when a relay has passed it on."""
    clients = Clients()
    job = Job("", RequestOptions(), [], 1, None, [], None, 0)
    job.respond = late = Late(lambda outcome, final: clients.got.append((1, outcome)))
    clients.order.begin(job)
    clients.order.begin(job)
    second = clients.begin(2)
    job.respond("a", True)
    second.respond("b", True)
    assert clients.got == []
    late.client(*late.outcomes.pop())
    assert clients.got == [(1, "a"), (2, "b")]


class Region:
    """Counts its uses. The process that has it has one."""

    def __init__(self):
        self.uses = 1

    def count_on(self):
        assert self.uses, "a region that is closed cannot be opened again"
        self.uses += 1

    def close(self):
        self.uses -= 1


def test_region_of_an_early_response():
    """A response that is held keeps its region open until it is released, also if its process ends meanwhile."""
    clients, region = Clients(), Region()
    first, second = clients.begin(1), clients.begin(2)
    second.respond(InferResponse("m", 1, "", [], regions=(region,)), True)
    region.close()
    assert region.uses == 1
    first.respond("a", True)
    (_, response) = clients.got[-1]
    assert region.uses == 1
    response.release()
    assert region.uses == 0


def test_client_that_sends_the_next_request():
    """A client may begin another request, and that may be answered, while it gets a response."""
    clients = Clients()
    later = []

    def respond(outcome, final):
        clients.got.append((1, outcome))
        later.append(clients.begin(3))
        later[0].respond("c", True)

    first = Job("", RequestOptions(), [], 1, None, [], respond, 0)
    clients.order.begin(first)
    second = clients.begin(2)
    second.respond("b", True)
    first.respond("a", True)
    assert clients.got == [(1, "a"), (2, "b"), (3, "c")]


def test_full():
    """There is a limit for held responses, and it is told when there is room again."""
    clients = Clients()
    first = clients.begin(0)
    others = [clients.begin(number) for number in range(1, HELD_MAX + 1)]
    for other in others[:-1]:
        other.respond("x", True)
    assert not clients.order.is_full
    others[-1].respond("x", True)
    assert clients.order.is_full
    assert clients.room == []
    first.respond("x", True)
    assert not clients.order.is_full
    assert clients.room == [HELD_MAX + 1]


def test_first_request_queues_again():
    """While the first request waits for another execution there is no limit, because nothing else makes room."""
    clients = Clients()
    first, *others = [clients.begin(number) for number in range(HELD_MAX + 1)]
    for other in others:
        other.respond("x", True)
    assert clients.order.is_full
    first.turn.executes = False
    assert not clients.order.is_full
    clients.order.begin(first)
    assert clients.order.is_full


@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=8), seed=st.randoms(use_true_random=False))
def test_any_order(counts, seed):
    """However responses come, clients get each once, those of a request in order, and requests in order."""
    clients = Clients()
    jobs = [clients.begin(number) for number in range(len(counts))]
    coming = [number for number, count in enumerate(counts) for _ in range(count)]
    seed.shuffle(coming)
    sent = [0] * len(counts)
    for number in coming:
        sent[number] += 1
        jobs[number].respond(sent[number], sent[number] == counts[number])
    expected = [(number, index) for number, count in enumerate(counts) for index in range(1, count + 1)]
    assert clients.got == expected


class Response(InferResponse):
    """A response of so many bytes that counts its uses."""

    def __init__(self, size=1):
        output = OutputTensor("OUT", "UINT8", [size], bytes(size))
        super().__init__("m", 1, "", [output])
        self.taken = self.released = 0
        self.take, self.release = self._take, self._release

    def _take(self):
        self.taken += 1

    def _release(self):
        self.released += 1


class Instance:
    """Notes which jobs are cancelled."""

    def __init__(self):
        self.cancelled = []

    def cancel(self, job):
        self.cancelled.append(job)


def test_held_response_is_taken():
    """A response that is held does not count as one that its client has to take: its sender must not wait for that."""
    clients = Clients()
    first, second = clients.begin(1), clients.begin(2)
    own, early = Response(), Response()
    first.respond(own, False)
    second.respond(early, False)
    assert (own.taken, early.taken) == (0, 1)
    assert clients.got == [(1, own)]


def test_given_as_fast_as_they_are_taken(monkeypatch):
    """When the turn of a request comes, its client gets no more responses than it has room for; the end waits."""
    monkeypatch.setattr(flow_control, "RESPONSES_AHEAD_MAX", 2)
    clients = Clients()
    first, second, third = clients.begin(1), clients.begin(2), clients.begin(3)
    early = [Response() for _ in range(4)]
    for response in early:
        second.respond(response, False)
    third.respond("c", True)
    first.respond("a", True)
    assert clients.got == [(1, "a"), (2, early[0]), (2, early[1])]
    late = Response()
    second.respond(late, False)
    second.respond(None, True)
    assert late.taken == 0
    early[0].take()
    early[0].release()
    assert [outcome for _, outcome in clients.got[1:]] == early[:3]
    assert early[0].released == 1
    early[1].release()
    early[2].release()
    assert clients.got[-3:] == [(2, late), (2, None), (3, "c")]
    late.release()
    assert late.taken == late.released == 1


@pytest.mark.parametrize("limit", ["HELD_STREAM_RESPONSES_MAX", "HELD_STREAM_BYTES_MAX"])
def test_too_much_is_held(monkeypatch, limit):
    """A request for which too much is held fails in its turn; what was held is released, and its model may stop."""
    monkeypatch.setattr(response_order, limit, 2)
    clients = Clients()
    first, second, third = clients.begin(1), clients.begin(2), clients.begin(3)
    second.instance = Instance()
    early = [Response() for _ in range(4)]
    for response in early[:3]:
        second.respond(response, False)
    assert second.instance.cancelled == [second]
    assert [response.released for response in early] == [1, 1, 1, 0]
    second.respond(early[3], False)
    assert early[3].released == 1
    third.respond(Response(), False)
    first.respond("a", True)
    assert len(clients.got) == 1
    second.respond(InferenceError("", Code.CANCELLED), True)
    assert [number for number, _ in clients.got] == [1, 2, 3]
    failure = clients.got[1][1]
    assert failure.code is Code.UNAVAILABLE
    assert "'preserve_ordering'" in str(failure)


def test_last_response_is_held_in_any_case(monkeypatch):
    """No request fails for its last response, however much is held."""
    monkeypatch.setattr(response_order, "HELD_STREAM_BYTES_MAX", 2)
    clients = Clients()
    first, *others = [clients.begin(number) for number in range(4)]
    responses = [Response(5) for _ in others]
    for other, response in zip(others, responses, strict=True):
        other.respond(response, True)
    first.respond("a", True)
    assert [outcome for _, outcome in clients.got] == ["a", *responses]


def test_client_that_has_left():
    """What is held for a client that leaves is released at once, and its place stays until its request ends."""
    clients = Clients()
    first, second, third = clients.begin(1), clients.begin(2), clients.begin(3)
    early, later = Response(), Response()
    second.respond(early, False)
    second.turn.drop()
    assert early.released == 1
    second.respond(later, False)
    assert later.released == 1
    third.respond("c", True)
    first.respond("a", True)
    assert clients.got == [(1, "a")]
    second.respond(None, True)
    assert [number for number, _ in clients.got] == [1, 2, 3]
    assert clients.got[1][1].code is Code.CANCELLED


def test_client_leaves_after_the_last_response():
    """What is held for a request that has ended is replaced by one error."""
    clients = Clients()
    first, second = clients.begin(1), clients.begin(2)
    early = Response()
    second.respond(early, True)
    second.turn.drop()
    second.turn.drop()
    assert early.released == 1
    first.respond("a", True)
    assert [number for number, _ in clients.got] == [1, 2]
    assert clients.got[1][1].code is Code.CANCELLED


def test_first_client_leaves():
    """The responses of the first request go to its client also when that has left: it releases them."""
    clients = Clients()
    first = clients.begin(1)
    first.turn.drop()
    response = Response()
    first.respond(response, False)
    first.respond(None, True)
    assert clients.got == [(1, response), (1, None)]
    first.turn.drop()


def test_room_after_a_client_has_left():
    """The requests that wait because much is held learn that a client has left."""
    clients = Clients()
    _, second = clients.begin(1), clients.begin(2)
    for _ in range(HELD_MAX):
        second.respond(Response(), False)
    assert clients.order.is_full
    second.turn.drop()
    assert not clients.order.is_full
    assert clients.room == [0]

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The order of responses: rules, and any order of any responses."""

from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.execution.job import Job, Relay
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.runtime.scheduling.response_order import HELD_MAX, ResponseOrder
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

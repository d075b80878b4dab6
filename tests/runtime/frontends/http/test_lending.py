# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Connections that an instance reads by itself: when they are lent, and when they are taken back.

Over transports that note written data: see conftest.py. test_plain_exchange.py compares the responses.
"""

import json

import pytest

from pyruntime.runtime.frontends.common.client_timeouts import CHECK_S, IDLE_S_MAX
from pyruntime.runtime.frontends.http import lending as lending_module
from pyruntime.runtime.frontends.http.lending import ALIKE_MIN
from pyruntime.runtime.inference.model_version import ModelVersion

DOCUMENT = json.dumps(
    {
        "inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}],
        "parameters": {"binary_data_output": True},
    }
).encode()
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


def infer(text=b"abcd", model="m"):
    """A request, whose contents are four bytes."""
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nInference-Header-Content-Length: {len(DOCUMENT)}\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n%b%b" % (len(DOCUMENT) + 4, DOCUMENT, text)


@pytest.fixture
def lending(server):
    """A server whose instance can read connections, and acts when the test calls it."""
    server.read_plain()
    server.instance.waits = server.instance.sends = server.instance.may_read = True
    return server


def act(server):
    """Have the instance do all that there is to do, and tell of it."""
    while server.instance.jobs or server.instance.read():
        server.instance.answer()
    server.state.settle()


def send(server, transport, count, request=None):
    """Requests, one after the other."""
    for _ in range(count):
        transport.feed(request or infer())
        act(server)


def lent(server, count=ALIKE_MIN):
    """A connection that was sent so many plain requests."""
    transport = server.connect()
    send(server, transport, count)
    return transport


def is_lent(server, transport):
    """Whether the connection is lent; its transport must be paused exactly then."""
    found = transport._connection in server.state.lent
    assert found is transport.is_paused
    return found


def contents(transport):
    """The contents of the responses that were sent."""
    assert set(transport.statuses()) == {200}
    return [body[-4:] for _, _, body in transport.responses()]


class TestLending:
    """When a connection is lent."""

    def test_after_some_that_are_alike(self, lending):
        """Not before so many were answered past Python; the next one goes with it, and those that follow."""
        transport = lent(lending)
        assert not is_lent(lending, transport)
        for number in range(5):
            transport.feed(infer(b"%04d" % number))
            act(lending)
            assert is_lent(lending, transport)
        assert contents(transport)[-5:] == [b"%04d" % number for number in range(5)]
        assert [each.begun for each in lending.instance.lent] == [5]
        assert lending.state.in_flight == 0

    def test_others_in_between(self, lending):
        """A connection with different requests in between is not lent: it will hardly repeat one request."""
        transport = lending.connect()
        for _ in range(20):
            send(lending, transport, ALIKE_MIN)
            transport.feed(LIVE)
        assert lending.instance.lent == []

    def test_not_with_more_than_the_request(self, lending):
        """Pipelined requests are Python's; the last of them is lent."""
        transport = lent(lending)
        transport.feed(infer() + infer()[:-1])
        assert not is_lent(lending, transport)
        transport.feed(infer()[-1:])
        act(lending)
        assert not is_lent(lending, transport)
        send(lending, transport, ALIKE_MIN)
        assert is_lent(lending, transport)

    def test_instances_that_may_not(self, lending):
        """Whether they may is asked each time."""
        lending.instance.may_read = False
        transport = lent(lending, 20)
        assert not is_lent(lending, transport)
        lending.instance.may_read = True
        send(lending, transport, 1)
        assert is_lent(lending, transport)

    def test_several_instances(self, lending):
        """It would be one instance's, while another has nothing to do."""
        other = type(lending.instance)(lending.memory)
        other.is_idle = False
        lending.model.serve([lending.instance, other])
        assert not is_lent(lending, lent(lending, 20))

    def test_verbose_lines(self, lending):
        """Each request has its line in the log."""
        lending.state.log_settings.update({"log_verbose_level": 1})
        assert not is_lent(lending, lent(lending, 20))

    def test_a_transport_that_is_not_empty(self, lending):
        """A connection with unsent data is not lent, so that this data goes first."""
        transport = lent(lending)
        transport.stalled = True
        transport.feed(infer())
        assert not is_lent(lending, transport)
        act(lending)
        transport.drain()
        assert lending.is_idle()


class TestBack:
    """How Python has a connection back."""

    @pytest.fixture
    def transport(self, lending):
        """A connection that is lent."""
        made = lent(lending)
        send(lending, made, 3)
        assert is_lent(lending, made)
        return made

    def test_something_else(self, lending, transport):
        """Another request is answered as usual, and so is the one after it."""
        transport.feed(LIVE + infer(b"1234"))
        act(lending)
        assert not is_lent(lending, transport)
        assert transport.statuses()[-2:] == [200, 200]
        assert transport.responses()[-1][2][-4:] == b"1234"
        assert lending.is_idle()

    def test_garbage(self, lending, transport):
        """The client gets an error, and is disconnected."""
        transport.feed(b"\x16\x03\x01\r\n\r\n")
        act(lending)
        assert transport.statuses()[-1] == 400
        assert transport.closed
        assert lending.is_idle()

    def test_it_is_lent_less_and_less(self, lending, transport, monkeypatch):
        """A client that goes on changing its mind costs nothing in the end."""
        monkeypatch.setattr(lending_module, "ALIKE_MAX", ALIKE_MIN << 4)
        needed = []
        for _ in range(6):
            transport.feed(LIVE)
            act(lending)
            assert not is_lent(lending, transport)
            count = 0
            while not is_lent(lending, transport):
                send(lending, transport, 1)
                count += 1
            needed.append(count - 1)
        assert needed == [ALIKE_MIN << min(number, 4) for number in range(1, 7)]

    def test_a_long_lending(self, lending, transport, monkeypatch):
        """Something else now and then, in between many that are alike, changes nothing."""
        monkeypatch.setattr(lending_module, "ALIKE_MAX", 10)
        for _ in range(5):
            send(lending, transport, 11)
            transport.feed(LIVE)
            act(lending)
            assert not is_lent(lending, transport)
            send(lending, transport, ALIKE_MIN + 1)
            assert is_lent(lending, transport)

    @pytest.mark.parametrize("cut", [0, 1, 100, len(infer()) - 1])
    def test_when_it_is_asked_for(self, lending, transport, cut):
        """A recall keeps what was read of the next request; the connection is lent again as soon as before."""
        before = len(transport.responses())
        transport.feed(infer(b"wxyz")[:cut])
        act(lending)
        lending.state.lent.recall()
        assert not is_lent(lending, transport)
        lending.state.lent.recall()
        transport.feed(infer(b"wxyz")[cut:])
        act(lending)
        assert contents(transport)[before:] == [b"wxyz"]
        send(lending, transport, ALIKE_MIN)
        assert is_lent(lending, transport)

    def test_a_request_in_the_socket(self, lending, transport):
        """A request that is still in the socket at a recall is handled by Python."""
        transport.feed(infer(b"4321"))
        lending.state.lent.recall()
        assert lending.state.in_flight == 1
        act(lending)
        assert contents(transport)[-1] == b"4321"
        assert lending.is_idle()

    def test_traces(self, lending, transport):
        """A change of trace settings recalls connections: the next request may have to be traced."""
        lending.state.tracer.update("", {"trace_rate": "7"})
        assert not is_lent(lending, transport)

    def test_verbose_lines(self, lending, transport, caplog):
        """The next request has a line in the log."""
        caplog.set_level("DEBUG", "pyruntime")
        lending.state.log_settings.update({"log_verbose_level": 1})
        assert not is_lent(lending, transport)
        send(lending, transport, 1)
        assert len([line for line in caplog.messages if "/v2/models/m/infer" in line]) == 1

    def test_another_model(self, lending, transport):
        """Requests go to the one that is loaded in its place, from the next one on."""
        other = type(lending.instance)(lending.memory)
        model = ModelVersion(lending.model.spec, 1, lending.memory, lambda model, reason: None)
        model.serve([other])
        lending.state.table.begin_load("m", 1)
        assert is_lent(lending, transport)
        lending.state.table.ready("m", 1, model)
        assert not is_lent(lending, transport)
        begun = lending.instance.lent[0].begun
        transport.feed(infer(b"next"))
        assert contents(transport)[-1] == b"next"
        assert lending.instance.lent[0].begun == begun

    def test_unloaded(self, lending, transport):
        """There is no such model any more."""
        lending.state.table.begin_unload("m", 1)
        assert not is_lent(lending, transport)
        transport.feed(infer())
        assert transport.statuses()[-1] == 404

    def test_idle(self, lending, transport):
        """A connection without a request since the last check is recalled, so that Python can close it if idle."""
        connection = transport._connection
        now = 0.0
        connection.check(now, False)
        assert is_lent(lending, transport)
        send(lending, transport, 1)
        for due in (True, False, False):
            now += CHECK_S
            connection.check(now, False)
            assert is_lent(lending, transport) is due
        connection.check(now + IDLE_S_MAX, False)
        assert transport.closed

    def test_slow(self, lending, transport):
        """A model that has become slow reads no connections."""
        lending.instance.may_read = False
        send(lending, transport, 1)
        assert is_lent(lending, transport)
        transport._connection.check(0.0, False)
        assert not is_lent(lending, transport)

    def test_closed(self, lending, transport):
        """A server that shuts down closes it, as it is idle."""
        transport._connection.close_idle()
        assert not is_lent(lending, transport)
        assert transport.closed

    def test_lost(self, lending, transport):
        """A lost connection is not read any more."""
        transport.feed(infer()[:50])
        act(lending)
        transport.lose()
        assert lending.state.lent == set()
        assert not lending.instance.read()


class TestAdopted:
    """Requests that are not over within their execution."""

    @pytest.fixture
    def transport(self, lending):
        """A connection that is lent, whose next request will be adopted."""
        made = lent(lending)
        send(lending, made, 1)
        lending.instance.adopts = lambda: True
        made.feed(infer(b"late"))
        assert lending.instance.read()
        return made

    def test_answered(self, lending, transport):
        """Python has the connection, and answers."""
        assert not is_lent(lending, transport)
        assert lending.state.in_flight == 1
        transport.feed(LIVE)
        before = len(transport.responses())
        act(lending)
        assert [status for status, _, _ in transport.responses()[before:]] == [200, 200]
        assert transport.responses()[before][2][-4:] == b"late"
        assert lending.is_idle()

    def test_lost(self, lending, transport):
        """The instance gets the cancellation."""
        (job,) = lending.instance.jobs
        transport.lose()
        assert lending.instance.cancelled == [job]
        assert lending.state.in_flight == 0
        act(lending)
        assert lending.is_idle()

    def test_half_closed(self, lending, transport):
        """It is answered all the same, and then the connection ends."""
        assert transport._connection.eof_received()
        act(lending)
        assert transport.responses()[-1][2][-4:] == b"late"
        assert transport.closed
        assert lending.is_idle()

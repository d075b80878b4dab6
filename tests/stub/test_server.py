# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The server for a model's objects, over a link that notes its messages: the test is the host."""

import asyncio
import json
import threading

import numpy as np
import pytest

from pyruntime.runtime.regions import create_region
from pyruntime.stub import backlog
from pyruntime.stub.logs import LOGGER
from pyruntime.stub.pb_utils import InferenceResponse, Tensor, TritonError, TritonModelException
from pyruntime.stub.responses import ResponseWriter
from pyruntime.stub.server import DROPPED_MAX, FULL, Server
from pyruntime.utils.errors import Code, LocalError
from pyruntime.utils.flow_control import BYTES_AHEAD_MAX, RESPONSES_AHEAD_MAX
from pyruntime.utils.messages import OK, REPORT_DROPPED, Ask, Measure, Reply, Respond

WANTED = {"OUT"}


class Link:
    """Notes the messages. A wait calls `on_wait` until it is over; without one it fails."""

    def __init__(self):
        self.sent = []
        self.closed = False
        self.refuse = lambda message: False
        self.on_wait = None
        self.waits = 0
        self.wakes = 0

    def send(self, message):
        if self.refuse(message):
            raise LocalError(f"{type(message).__name__} is too large")
        self.sent.append(message)

    def wait(self, done):
        while not done():
            self.waits += 1
            if self.on_wait is None:
                return False
            self.on_wait()
        return True

    def wake(self):
        self.wakes += 1


class Calls:
    """Notes the calls."""

    def start(self, request, decoupled, waiting):
        return request, decoupled, waiting


class Bench:
    def __init__(self):
        self.link = Link()
        self.responses = create_region("responses of a test")
        self.writer = ResponseWriter(self.responses, 1 << 20, "m", WANTED)
        self.finals = 0
        self.server = Server(
            self.link, Calls(), self.writer, self.responses, lambda: 4, self._note_final, lambda serial: 70 + serial
        )

    def _note_final(self):
        self.finals += 1

    @property
    def live(self):
        """How many slots are in use."""
        return self.writer._arena.live


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.responses.close()


def response(size=8, name="OUT"):
    return InferenceResponse([Tensor(name, np.zeros(size, np.uint8))])


class TestRespond:
    def test_a_response(self, bench):
        """A response is written, and the host told where; others may follow."""
        bench.server.respond(7, response(), WANTED, False)
        ((serial, wire, final, start_ns),) = bench.link.sent
        assert (serial, final, start_ns, wire[0]) == (7, False, 0, OK)
        assert bench.live == 1
        assert bench.finals == 0

    def test_the_last(self, bench):
        """The final response has the worker check which inputs the model still holds, and says when execute began."""
        bench.server.respond(7, response(), WANTED, True)
        bench.server.respond(8, None, WANTED, True)
        assert [message.final for message in bench.link.sent] == [True, True]
        assert bench.link.sent[1] == Respond(8, None, True, start_ns=78)
        assert bench.finals == 2

    def test_what_cannot_be_written(self, bench):
        """A response that makes no sense is an error, for this client alone."""
        bench.server.respond(7, InferenceResponse([Tensor("OUT", np.array(["\udcff"], object))]), WANTED, False)
        ((serial, (code, message, *_), final, *_),) = bench.link.sent
        assert (serial, code, final) == (7, Code.INTERNAL, False)
        assert message.startswith("a response of model 'm' cannot be sent: ")

    def test_an_output_that_was_dropped(self, bench):
        """The host is told of each name once, and of so many names at most."""
        for name in ["\udcff", *map(str, range(1, DROPPED_MAX)), "\udcff", "one too many"]:
            bench.server.drop(name)
        names = ["\\udcff", *map(str, range(1, DROPPED_MAX))]
        assert bench.link.sent == [Ask(0, REPORT_DROPPED, [name]) for name in names]

    @pytest.mark.parametrize("final", [False, True])
    @pytest.mark.parametrize("has_slot", [False, True])
    def test_too_large_for_a_frame(self, bench, final, has_slot):
        """More text than a frame holds is an error, and its slot is free again."""
        bench.link.refuse = lambda message: message.response[0] == OK
        made = InferenceResponse([Tensor("OUT", np.zeros(8 if has_slot else 0, np.uint8))])
        bench.server.respond(7, made, WANTED, final)
        ((serial, (code, message, *_), was_final, *_),) = bench.link.sent
        assert (serial, code, was_final) == (7, Code.INTERNAL, final)
        assert message == "a response cannot be sent: Respond is too large"
        assert bench.live == 0
        assert bench.finals == final

    def test_the_host_is_gone(self, bench):
        """A response to a host that has hung up is not sent, and its memory is freed."""
        bench.link.closed = True
        bench.server.respond(7, response(), WANTED, True)
        assert bench.link.sent == []
        assert bench.live == 0


class TestRoom:
    def test_while_there_is_some(self, bench):
        """A sender does not wait while its client takes the responses."""
        for _ in range(RESPONSES_AHEAD_MAX):
            bench.server.wait_for_room(7)
            bench.server.respond(7, response(), WANTED, False)
        assert bench.link.waits == 0

    @pytest.mark.parametrize("count", [1, 5])
    def test_until_there_is_some(self, bench, count):
        """It waits until its client has taken enough."""
        for _ in range(RESPONSES_AHEAD_MAX):
            bench.server.respond(7, response(), WANTED, False)
        bench.link.on_wait = lambda: bench.server.credit([[6, 64], [7, count]])
        assert not bench.server.has_room(7)
        bench.server.wait_for_room(7)
        assert bench.link.waits == 1
        assert bench.server.has_room(7)
        bench.server.wait_for_room(6)
        assert bench.link.waits == 1

    def test_of_bytes(self, bench):
        """Large responses fill it sooner."""
        bench.server.respond(7, response(BYTES_AHEAD_MAX), WANTED, False)
        bench.server.wait_for_room(7)
        assert bench.link.waits == 1

    def test_of_errors(self, bench):
        """Errors take their place."""
        for _ in range(RESPONSES_AHEAD_MAX):
            bench.server.respond(7, InferenceResponse(error=TritonError("no")), WANTED, False)
        bench.server.wait_for_room(7)
        assert bench.link.waits == 1

    @pytest.mark.parametrize("end", ["last", "otherwise"])
    def test_of_one_that_is_over(self, bench, end):
        """A request that has ended does not wait for room, and the flow control keeps no state of it."""
        for _ in range(RESPONSES_AHEAD_MAX):
            bench.server.respond(7, response(), WANTED, False)
        if end == "last":
            bench.server.respond(7, None, WANTED, True)
        else:
            bench.server.ended(7)
            assert bench.link.wakes == 1
        bench.server.wait_for_room(7)
        assert bench.link.waits == 0
        bench.server.credit([[7, 3]])
        assert bench.server._flow._sizes == {}

    def test_the_host_hangs_up(self, bench):
        """A wait for room ends when the host has hung up."""
        for _ in range(RESPONSES_AHEAD_MAX):
            bench.server.respond(7, response(), WANTED, False)
        bench.link.closed = True
        bench.server.wait_for_room(7)


def in_coroutine(function, *arguments):
    """Call a function in a coroutine."""

    async def call():
        return function(*arguments)

    return asyncio.run(call())


def send_all(bench, numbers):
    """Send so many responses in a coroutine, as a stream does. The parameter of each is its number."""

    def send():
        for number in numbers:
            bench.server.wait_for_room(7)
            made = InferenceResponse([Tensor("OUT", np.zeros(8, np.uint8))], parameters={"n": number})
            bench.server.respond(7, made, WANTED, False)

    in_coroutine(send)


def sent_numbers(bench):
    return [json.loads(each.response[4])["n"] for each in bench.link.sent if each.response and each.response[0] == OK]


class TestCoroutineWithoutRoom:
    def test_does_not_wait(self, bench):
        send_all(bench, range(RESPONSES_AHEAD_MAX + 5))
        assert bench.link.waits == 0
        assert sent_numbers(bench) == [*range(RESPONSES_AHEAD_MAX)]

    def test_has_its_responses_sent_in_order_as_the_client_takes_others(self, bench):
        send_all(bench, range(RESPONSES_AHEAD_MAX + 5))
        bench.server.credit([[7, 3]])
        assert sent_numbers(bench) == [*range(RESPONSES_AHEAD_MAX + 3)]
        send_all(bench, [RESPONSES_AHEAD_MAX + 5])
        bench.server.credit([[7, 100]])
        assert sent_numbers(bench) == [*range(RESPONSES_AHEAD_MAX + 6)]
        assert bench.server.has_room(7)
        assert 7 not in bench.server._backlog

    def test_has_the_end_sent_behind_them(self, bench):
        send_all(bench, range(RESPONSES_AHEAD_MAX + 1))
        in_coroutine(bench.server.respond, 7, None, WANTED, True)
        assert not bench.link.sent[-1].final
        bench.server.credit([[7, 1]])
        assert sent_numbers(bench) == [*range(RESPONSES_AHEAD_MAX + 1)]
        assert [each.final for each in bench.link.sent].index(True) == RESPONSES_AHEAD_MAX + 1
        assert bench.server._flow._sizes == {}

    def test_has_none_sent_when_execute_answers_otherwise(self, bench):
        send_all(bench, range(RESPONSES_AHEAD_MAX + 5))
        bench.server.ended(7)
        bench.server.credit([[7, 5]])
        assert sent_numbers(bench) == [*range(RESPONSES_AHEAD_MAX)]
        assert bench.live == RESPONSES_AHEAD_MAX

    def test_that_sends_too_much_ends_its_request_with_an_error(self, bench, monkeypatch):
        warnings = []
        monkeypatch.setattr(LOGGER, "warning", lambda text, *arguments: warnings.append(text % arguments))
        monkeypatch.setattr(backlog, "RESPONSES_KEPT_MAX", 4)
        send_all(bench, range(RESPONSES_AHEAD_MAX + 9))
        assert bench.server.is_cancelled(7)
        assert warnings == [f"a request ends: {FULL}"]
        assert bench.live == RESPONSES_AHEAD_MAX + 4
        in_coroutine(bench.server.respond, 7, None, WANTED, True)
        bench.server.credit([[7, 5]])
        assert sent_numbers(bench) == [*range(RESPONSES_AHEAD_MAX + 4)]
        assert [(each.final, each.response[:2]) for each in bench.link.sent[-1:]] == [(True, (Code.UNAVAILABLE, FULL))]
        assert not bench.server.is_cancelled(7)

    def test_may_await_room(self, bench):
        send_all(bench, range(RESPONSES_AHEAD_MAX + 2))
        woken = []
        bench.server.when_room(7, lambda: woken.append(7))
        bench.server.credit([[7, 2]])
        assert not woken
        bench.server.credit([[7, 1]])
        assert woken == [7]
        bench.server.when_room(7, lambda: woken.append(8))
        assert woken == [7, 8]


class TestCancelled:
    def test_flag(self, bench):
        """A flag that the host sets is visible as the cancellation of its request."""
        assert not bench.server.is_cancelled(7)
        bench.responses.set_flag(7, 1)
        assert bench.server.is_cancelled(7)
        assert not bench.server.is_cancelled(8)


class TestAsk:
    def test_answer(self, bench):
        """`ask` returns the value of the reply."""
        bench.link.on_wait = lambda: bench.server.reply(Reply(1, OK, 0.5))
        assert bench.server.ask("metric_value", [3]) == 0.5
        assert bench.link.sent == [Ask(1, "metric_value", [3])]

    def test_nothing_to_say(self, bench):
        """It may be None."""
        bench.link.on_wait = lambda: bench.server.reply(Reply(1, OK, None))
        assert bench.server.ask("load_model", ["m", "", {}]) is None

    def test_refusal(self, bench):
        """A refusal is raised as an exception with the server's reason."""
        bench.link.on_wait = lambda: bench.server.reply(Reply(1, Code.NOT_FOUND, "no such model"))
        with pytest.raises(TritonModelException, match=r"^no such model$") as caught:
            bench.server.ask("load_model", ["m", "", {}])
        assert caught.value.__cause__.code is Code.NOT_FOUND

    def test_the_host_hangs_up(self, bench):
        """`ask` fails instead of waiting when the host has hung up."""
        with pytest.raises(TritonModelException, match="the server is gone"):
            bench.server.ask("load_model", ["m", "", {}])

    def test_that_cannot_be_sent(self, bench):
        """A question that does not fit a frame raises, and no reply to it is expected."""
        bench.link.refuse = lambda message: True
        with pytest.raises(TritonModelException, match="Ask is too large"):
            bench.server.ask("load_model", ["m", "", {}])
        assert bench.server._replies == {}

    def test_each_gets_its_own(self, bench):
        """Many threads may ask at a time, and are answered in any order."""
        barrier = threading.Barrier(4)
        answers = {}

        def ask(number):
            barrier.wait(60)
            answers[number] = bench.server.ask("echo", [number])

        def reply():
            for message in reversed(list(bench.link.sent)):
                if bench.server._replies.get(message.question, 0) is None:
                    bench.server.reply(Reply(message.question, OK, message.arguments[0]))

        bench.link.on_wait = reply
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert answers == {number: number for number in range(4)}
        assert bench.server._replies == {}


class TestTell:
    def test_without_waiting(self, bench):
        """`tell` and `measure` do not wait for a reply."""
        bench.server.tell("drop_metric", [3])
        bench.server.measure(3, "increment", 2)
        assert bench.link.sent == [Ask(0, "drop_metric", [3]), Measure(3, "increment", 2.0)]
        assert type(bench.link.sent[1].value) is float
        assert bench.link.waits == 0

    def test_the_host_is_gone(self, bench):
        """`tell` and `measure` do not fail when the host has hung up: destructors call them."""

        def send(message):
            raise BrokenPipeError

        bench.link.send = send
        bench.link.closed = True
        bench.server.tell("drop_metric", [3])
        bench.server.measure(3, "set", 2.0)


def test_call(bench):
    """A call is made on behalf of the batch that waits."""
    assert bench.server.call("request", True) == ("request", True, 4)


def test_free_memory(bench):
    """The free memory is as before once all responses are freed."""
    bench.server.respond(7, response(1000), WANTED, False)
    bench.writer.free([bench.link.sent[0].response[2]])
    before = bench.server.free_memory()
    bench.server.respond(7, response(1000), WANTED, False)
    assert bench.server.free_memory() < before
    bench.writer.free([bench.link.sent[1].response[2]])
    assert bench.server.free_memory() == before

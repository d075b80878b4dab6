# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of native code, which the test makes, to a server and models of straw."""

import asyncio
from types import SimpleNamespace

import pytest

from pyruntime.runtime.calls import model_call
from pyruntime.runtime.execution.deadlock import FREE
from pyruntime.runtime.instances.native import calls as native_calls
from pyruntime.runtime.instances.native.calls import NativeCalls
from pyruntime.runtime.instances.native.worker import NativeWorker
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.messages import OK


class Call:
    """A call, and the answers to it."""

    def __init__(self, method, *arguments):
        self.method = method
        self.arguments = arguments
        self.log = []

    def answer(self, result):
        self.log.append(("answer", result))

    def fail(self, code, message):
        self.log.append(("fail", code, message))

    def respond(self, *response):
        self.log.append(("respond", *response[:-1]))
        if response[-1] is not None:
            response[-1]()


def infer(number=1, trace="", caller=None):
    return Call("infer", number, "callee", -1, "7", 0, 0, 0, 0, {}, [], None, trace, "", caller)


class Callee:
    """A model whose requests queue until the test says otherwise."""

    version = 2

    is_limited = False

    def __init__(self):
        self.spec = SimpleNamespace(name="callee")
        self.workers = [FREE]
        self.jobs = []
        self.cancelled = []
        self.at_start = lambda job: None

    def accept(self, request, respond):
        if request.id != "7":
            raise InferenceError("not that", Code.INVALID_ARG)
        return SimpleNamespace(respond=respond, instance=None, trace=None)

    def start(self, job):
        self.jobs.append(job)
        self.at_start(job)

    def cancel(self, job):
        self.cancelled.append(job)
        job.respond(InferenceError("cancelled", Code.CANCELLED), True)


class Server:
    """Stands for the server that native calls use."""

    def __init__(self):
        self.callee = Callee()
        self.traced = []
        self.asked = []
        self.waits = []

    def find(self, name, version):
        if name != "callee":
            raise InferenceError("there is none", Code.NOT_FOUND)
        return self.callee

    def query(self, method, arguments):
        if method == "ServerIsLive":
            return True
        raise InferenceError(f"{method}{arguments}", Code.UNSUPPORTED)

    def when_ready(self, name, version, caller, call_back):
        self.waits.append((name, version, caller))
        call_back(InferenceError("a -> b -> a", Code.UNAVAILABLE) if name == "b" else self.callee)

    def trace_call(self, callee, job, context):
        self.traced.append(context)

    def ask(self, owner, loading, method, arguments, reply):
        self.asked.append((loading, method, arguments))
        if arguments[0] == "callee":
            reply(OK, None)
        else:
            reply(2, "no such model")


@pytest.fixture
def accepting():
    return []


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def calls(server, accepting):
    return NativeCalls(server, accepting.append)


def ask(calls, call):
    calls.call(call)
    return call.log


def response(log):
    outputs = [OutputTensor("OUT", "FP32", [1], b"1234")]
    return InferResponse("callee", 2, "7", outputs, {"p": 1}, release=lambda: log.append("released"))


def test_infer(calls, server):
    """A request is taken before it is answered; its responses are released when they are copied."""
    call = infer(trace="context")
    calls.call(call)
    (job,) = server.callee.jobs
    assert (call.log, server.traced, len(calls)) == ([("answer", None)], ["context"], 1)
    job.respond(response(call.log), False)
    job.respond(InferenceError("too much", Code.UNAVAILABLE), False)
    job.respond(None, True)
    assert call.log[1:] == [
        ("respond", False, [("OUT", "FP32", [1], b"1234")], {"p": 1}, None, "callee", 2),
        "released",
        ("respond", False, None, {}, (4, "too much"), "callee", 2),
        ("respond", True, None, {}, None, "callee", 2),
    ]
    assert len(calls) == 0


def test_response_that_cannot_be_handed_over(calls, server):
    """Parameters are numbers of 64 bits to native code; a model may send larger ones."""
    call = infer()
    calls.call(call)
    respond = call.respond

    def refuse(final, outputs, *rest):
        if outputs is not None:
            raise OverflowError("too large")
        respond(final, outputs, *rest)

    call.respond = refuse
    (job,) = server.callee.jobs
    job.respond(response(call.log), True)
    message = "a response of the model that was called cannot be handed over: too large"
    assert call.log[1:] == [("respond", True, None, {}, (1, message), "callee", 2)]
    assert len(calls) == 0


def test_early_response(calls, server):
    """A response that comes while the request is being given to its model comes after the answer all the same."""
    server.callee.at_start = lambda job: job.respond(InferenceError("at once"), True)
    assert ask(calls, infer()) == [
        ("answer", None),
        ("respond", True, None, {}, (1, "at once"), "callee", 2),
    ]
    assert len(calls) == 0


@pytest.mark.parametrize("full", [False, True])
def test_refusals(calls, server, monkeypatch, full):
    """A request that is not taken is answered with why, and nothing is left of it."""

    def refuse(job):
        raise InferenceError("Exceeds maximum queue size", Code.UNAVAILABLE)

    server.callee.at_start = refuse
    if full:
        for module in (native_calls, model_call):
            monkeypatch.setattr(module, "CALLS_MAX", 0)
    message = "more than 0 calls are under way" if full else "Exceeds maximum queue size"
    assert ask(calls, infer()) == [("fail", 4, message)]
    assert len(calls) == 0


def test_wrong_request(calls):
    """A request that the model does not accept fails the call."""
    call = infer()
    call.arguments = (*call.arguments[:3], "8", *call.arguments[4:])
    assert ask(calls, call) == [("fail", 3, "not that")]


def test_cancel(calls, server):
    """One that is over is not cancelled."""
    call = infer(5)
    calls.call(call)
    calls.call(Call("cancel", 5))
    calls.call(Call("cancel", 5))
    assert server.callee.cancelled == server.callee.jobs
    assert call.log[1:] == [("respond", True, None, {}, (7, "cancelled"), "callee", 2)]


def test_close(calls, server, accepting):
    """A server that stops cancels calls under way."""
    calls.call(infer())
    calls.close()
    assert accepting == [True, False]
    assert server.callee.cancelled == server.callee.jobs


def test_find(calls, server):
    """A model that loads waits for one that does, too."""
    assert ask(calls, Call("InferenceRequestNew", "callee", -1, "")) == [("answer", None)]
    assert ask(calls, Call("InferenceRequestNew", "nothing", -1, "")) == [("fail", 2, "there is none")]
    assert server.waits == []
    assert ask(calls, Call("InferenceRequestNew", "callee", -1, "a")) == [("answer", None)]
    assert ask(calls, Call("InferenceRequestNew", "nothing", -1, "a")) == [("fail", 2, "there is none")]
    assert ask(calls, Call("InferenceRequestNew", "b", 1, "a")) == [("fail", 4, "a -> b -> a")]
    assert server.waits == [("callee", -1, "a"), ("nothing", -1, "a"), ("b", 1, "a")]


def test_questions(calls, server):
    """Questions that the server answers at once, and questions that take time."""
    assert ask(calls, Call("ServerIsLive")) == [("answer", True)]
    assert ask(calls, Call("ServerStop", 5)) == [("fail", 5, "ServerStop(5,)")]
    assert ask(calls, Call("ServerLoadModel", "callee", "{}", {"file:a": b""}, "")) == [("answer", None)]
    assert ask(calls, Call("ServerUnloadModel", "other", True, "a")) == [("fail", 2, "no such model")]
    assert server.asked == [
        ("", "load_model", ["callee", "{}", {"file:a": b""}]),
        ("a", "unload_model", ["other", True]),
    ]


class Loop:
    """The calls that are scheduled for later."""

    def __init__(self, monkeypatch):
        self.later = []
        loop = SimpleNamespace(call_later=lambda delay_s, act, *arguments: self.later.append((act, arguments)))
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)

    def go_on(self):
        for act, arguments in self.later:
            act(*arguments)


@pytest.fixture
def loop(monkeypatch):
    return Loop(monkeypatch)


@pytest.fixture
def worker(server):
    """The only worker that could execute the call, and the one that makes it."""
    worker = NativeWorker("callee", lambda: None)
    server.callee.workers = [worker]
    return worker


def caller_on(worker):
    return SimpleNamespace(instance=SimpleNamespace(worker=worker))


def test_deadlock(calls, worker, loop):
    """A request that waits for the Execute that made it is refused, but not at once."""
    call = infer(caller=caller_on(worker))
    assert ask(calls, call) == [("answer", None)]
    loop.go_on()
    ((_, final, _, _, failure, _, _),) = call.log[1:]
    assert final
    assert failure == (
        4,
        "the request would wait for ever, because every instance that could serve it waits for this one: "
        "callee -> callee. Give one of these models more instances",
    )


@pytest.mark.parametrize("what", ["returned", "answered", "started", "another"])
def test_no_deadlock(calls, server, worker, loop, what):
    """A call is not refused if Execute has returned, the request has advanced, or another worker can serve it."""
    call = infer(caller=caller_on(worker))
    calls.call(call)
    (job,) = server.callee.jobs
    if what == "returned":
        worker.returned()
    elif what == "answered":
        job.respond(None, True)
    elif what == "started":
        job.instance = SimpleNamespace(worker_of=lambda job: FREE)
    else:
        server.callee.workers = [worker, FREE]
    assert len(loop.later) == 1
    before = list(call.log)
    loop.go_on()
    assert call.log == before


def test_first_call():
    """The first call is reported, so that requests do not queue behind an instance that makes calls."""
    heard = []
    worker = NativeWorker("m", lambda: heard.append(1))
    worker.expect()
    worker.expect()
    assert (heard, worker.makes_calls) == ([1], True)


def test_running_call(calls, server, worker, loop):
    """A request that is with an instance waits for that one alone."""
    calls.call(infer(caller=caller_on(worker)))
    (job,) = server.callee.jobs
    assert worker.waiting_calls() == [([worker], "callee")]
    job.instance = SimpleNamespace(worker_of=lambda job: FREE)
    assert worker.waiting_calls() == [([FREE], "callee")]
    job.respond(None, True)
    assert worker.waiting_calls() == []

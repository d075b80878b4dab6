# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A worker, and the host's own view of its batches, in one process.

For all actions of a model's threads, in any order, the host accepts the stub's messages and every request is answered
once.
"""

import gc
import queue
import socket
import sys
import textwrap
import threading
import time
from collections import deque

import numpy as np
import pytest

from pyruntime.runtime.config.build import model_spec
from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.instances.output_findings import OutputFindings
from pyruntime.runtime.instances.stub.batches import StubBatches
from pyruntime.runtime.instances.stub.instance_spec import StubInstanceSpec
from pyruntime.runtime.instances.stub.supervisor import ProcessExit
from pyruntime.runtime.observe.statistics import ModelStatistics
from pyruntime.runtime.regions import create_region
from pyruntime.runtime.requests.types import InferResponse, free_slots
from pyruntime.stub.pb_utils import TRITONSERVER_RESPONSE_COMPLETE_FINAL
from pyruntime.utils import flow_control
from pyruntime.utils.addresses import address
from pyruntime.utils.errors import PeerError
from pyruntime.utils.messages import (
    INLINE_BYTES_MAX,
    NO_SLOT,
    OK,
    Answer,
    Call,
    CancelCall,
    Consumed,
    Credit,
    Failed,
    Infer,
    Ready,
    Release,
    ReleaseHold,
    Requeue,
    Respond,
    Result,
    Retired,
    Stop,
    Stopped,
    Unread,
)
from pyruntime.utils.request_codec import decode_request
from tests.patience import PATIENCE_S

CONFIG = (
    "name: 'm' max_batch_size: 8 input { name: 'IN' data_type: TYPE_FP32 dims: -1 } "
    "output { name: 'OUT' data_type: TYPE_FP32 dims: -1 } "
)
DECOUPLED = {"model_transaction_policy": {"decoupled": True}}
HELPERS = """
import asyncio
import random
import threading

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

def response(*values):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(values, np.float32))])

def send(sender, response=None, flags=0):
    # Another thread may have closed it.
    try:
        sender.send(response, flags)
    except pb_utils.TritonModelException as exc:
        assert "closed" in str(exc) or "more than one" in str(exc) or "before sending" in str(exc), exc

def start(function, *arguments):
    threading.Thread(target=function, args=arguments).start()
"""
MODELS = {
    "one thread for each request": """
        def execute(self, requests):
            for request in requests:
                start(self.answer, request)
        def answer(self, request):
            sender = request.get_response_sender()
            values = request.inputs()[0].as_numpy()
            for number in range(random.randint(0, 5)):
                send(sender, response(*values))
            del request, values
            send(sender, flags=FINAL)
    """,
    "threads that contend for the last word": """
        def execute(self, requests):
            for request in requests:
                for flags in (0, FINAL, FINAL):
                    start(self.answer, request.get_response_sender(), flags)
        def answer(self, sender, flags):
            for number in range(3):
                send(sender, response(1, 2))
            send(sender, response() if flags == 0 else None, flags)
    """,
    "threads that go on while execute fails": """
        def execute(self, requests):
            for request in requests:
                start(self.answer, request.get_response_sender())
            if random.random() < 0.5:
                raise ValueError("no")
        def answer(self, sender):
            for number in range(3):
                send(sender, response(1, 2))
            send(sender, flags=FINAL)
    """,
    "a request that is kept a little longer": """
        lock = threading.Lock()
        kept = []
        def execute(self, requests):
            with self.lock:
                self.kept += requests
                kept = self.kept[:-3]
                del self.kept[:-3]
            for request in kept:
                start(self.answer, request)
        def answer(self, request):
            send(request.get_response_sender(), response(*request.inputs()[0].as_numpy()), FINAL)
    """,
    "more responses than there is room for": """
        def execute(self, requests):
            for request in requests:
                start(self.answer, request.get_response_sender())
        def answer(self, sender):
            for number in range(150):
                send(sender, response(number))
            send(sender, flags=FINAL)
    """,
    "coroutines": """
        async def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                send(sender, response(1))
                await asyncio.sleep(0)
                send(sender, flags=FINAL)
    """,
}
PLAIN = {
    "a sender beside what execute returns": """
        def execute(self, requests):
            for request in requests:
                start(self.answer, request.get_response_sender())
            return [random.choice([None, response(2)]) for _ in requests]
        def answer(self, sender):
            send(sender, response(1))
            send(sender, flags=FINAL)
    """,
    "a sender for which nobody waits": """
        def execute(self, requests):
            for request in requests:
                if random.random() < 0.5:
                    start(self.answer, request.get_response_sender())
        def answer(self, sender):
            if random.random() < 0.5:
                send(sender, response(1), random.choice([0, FINAL]))
    """,
    "what is returned": """
        def execute(self, requests):
            return [response(*request.inputs()[0].as_numpy()) for request in requests]
    """,
}


class Slot:
    offset = 0
    view = memoryview(b"")

    def __init__(self):
        self.freed = 0

    def free(self):
        assert not self.freed
        self.freed += 1


class Request:
    """One request; its client takes all responses."""

    def __init__(self, wire):
        self.outcomes = []
        self.is_over = False
        self.slot = Slot()
        _, options, tensors, *_ = decode_request(wire)
        self.job = Job("", options, tensors, 1, None, [self.slot], self._respond, time.monotonic_ns())

    def _respond(self, outcome, final):
        assert not self.is_over
        self.is_over = final
        self.outcomes.append(outcome)
        if isinstance(outcome, InferResponse):
            outcome.release()


class Connection:
    """Stands for StubConnection, with the socket to the worker. Like StubConnection it never waits."""

    def __init__(self, host):
        self.responses = host.responses
        # One object has the methods of all parts.
        self.regions = self.returns = self.link = self
        self._host = host
        self._waiting = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._send_all, daemon=True)
        self._thread.start()

    def _send_all(self):
        while (message := self._waiting.get()) is not None:
            self._host.send(message)

    def leased(self, number):
        """The models of these tests have nothing on a GPU."""
        raise PeerError(f"region {number} is not leased")

    def finish(self):
        """Everything is sent."""
        self._waiting.put(None)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def say(self, message):
        self._waiting.put(message)

    def infer(self, batch, requests, at_once=False):
        self._waiting.put(Infer(batch, requests, []))

    def release(self, slot, size):
        self._waiting.put(Release([slot]))

    def credit(self, serial, size):
        self._waiting.put(Credit([[serial, 1]]))

    def forget_credit(self, serial):
        """See StubConnection."""

    def set_flag(self, serial, value):
        self.responses.set_flag(serial, value)


class Owner:
    def capacity_freed(self):
        """See Owner."""

    def put_back(self, batch):
        raise AssertionError("nothing is put back here")

    def reschedule(self, job):
        raise AssertionError("nothing is rescheduled here")


class NoCalls:
    def waiting(self, batch):
        return ()

    def cancel_batch(self, number):
        raise AssertionError("nothing is cancelled here")

    def free_unread(self, slots):
        free_slots(slots)


@pytest.fixture(autouse=True)
def _narrow_window(monkeypatch):
    """Senders have to wait soon."""
    monkeypatch.setattr(flow_control, "RESPONSES_AHEAD_MAX", 64)


@pytest.fixture(autouse=True)
def _switch_often():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def converse(host, body, rounds, concurrency=1, kept=0, **config):
    """Have a model with this body answer so many batches; of the last ones it keeps so many requests."""
    source = f"{HELPERS}\nclass TritonPythonModel:\n{textwrap.indent(textwrap.dedent(body), '    ')}"
    assert host.load(source, concurrency, **config) == Ready(False, False)
    text = CONFIG + ("model_transaction_policy { decoupled: true }" if config else "")
    parsed = parse_model_config(text, "config.pbtxt")
    spec = model_spec(normalize(parsed, directory_name="m", files=["model.py"], gpus=()))
    findings = OutputFindings(spec, "model.py")
    plan = StubInstanceSpec("m_0", spec, 1, {}, {}, None, 1 << 20, ModelStatistics(), None, findings, concurrency)
    connection = Connection(host)
    batches = StubBatches(plan, connection, Owner(), NoCalls())
    handlers = {
        Result: batches.answered, Failed: batches.answered, Respond: batches.responded,
        Retired: batches.retained.retired,
    }  # fmt: skip
    batches.open()
    requests = []
    while rounds or len(batches) > kept:
        while rounds and batches.capacity > 0:
            rounds -= 1
            batch = [Request(host.wire([1, 2], 64 * number)) for number in range(rounds % 3 + 1)]
            requests += batch
            batches.execute([request.job for request in batch])
        message = host.receive()
        handlers[type(message)](message)
    connection.finish()
    host.worker._batches.model.kept = []  # they are forgotten, and so they end
    host.send(Stop())
    while (message := host.receive()) != Stopped():
        handlers[type(message)](message)
    batches.died(ProcessExit(0), restarts=False)  # which frees the requests that it still kept
    assert all(request.is_over for request in requests)
    assert all(request.slot.freed for request in requests)


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("body", MODELS.values(), ids=MODELS)
def test_decoupled(host, body, concurrency):
    """Of models that respond as often as they like."""
    converse(host, body, 20 if "150" in body else 100, concurrency, 3 if "kept" in body else 0, **DECOUPLED)


KEEPS = """
    def execute(self, requests):
        self.sender = requests[0].get_response_sender()
"""


def test_response_after_the_end(host):
    """What a thread of the model, or a destructor, sends behind the last word of the stub is dropped in silence."""
    assert host.load(f"{HELPERS}\nclass TritonPythonModel:{KEEPS}", **DECOUPLED) == Ready(False, False)
    host.send(Infer(1, [host.wire()], []))
    assert type(host.receive()) is Result
    sender = host.worker._batches.model.sender
    host.send(Stop())
    while host.receive() != Stopped():
        pass
    sender.send(flags=TRITONSERVER_RESPONSE_COMPLETE_FINAL)


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("body", PLAIN.values(), ids=PLAIN)
def test_plain(host, body, concurrency):
    """Of models that respond once."""
    converse(host, body, 100, concurrency)


CALLS = """
    arrays = []
    def execute(self, requests):
        for number in range(10):
            size = random.choice([2, 5000, 40000])
            made = pb_utils.InferenceRequest(
                model_name="other", inputs=[pb_utils.Tensor("IN", np.full(size, number, np.float32))]
            )
            how = random.randrange(4)
            if how == 0:
                self.keep(made.exec())
            elif how == 1:
                for each in made.exec(decoupled=True):
                    self.keep(each)
            elif how == 2:
                for each in made.exec(decoupled=True):
                    break
            else:
                made.exec(decoupled=True).cancel()
        return [response(1) for _ in requests]
    def keep(self, response):
        assert not response.has_error(), response.error().message()
        for tensor in response.output_tensors():
            array = tensor.as_numpy()
            assert (array == 7).all()
            self.arrays.append(array[1:])
        del self.arrays[:-3]
"""


class Callee:
    """Answers calls, some with memory that must be released. `held` is the memory that was not released yet."""

    def __init__(self, host, connection):
        self.region = create_region("another model's responses")
        self.region.commit(0, 1 << 20)
        self.region.view[: 1 << 19] = np.full(1 << 17, 7, np.float32).tobytes()
        socket.send_fds(host.grants, [self.region.number.to_bytes(8, "little")], [self.region.fileno()])
        self.connection = connection
        self.held = set()
        self.calls = set()
        self.unread = set()
        self._hold = 0

    def response(self, size):
        """A response of so many values: held, unless it goes along."""
        if size <= INLINE_BYTES_MAX // 4:
            contents = np.full(size, 7, np.float32).tobytes()
            return [OK, "", NO_SLOT, [["OUT", "FP32", [size], contents, 4 * size, 0, 0]], ""]
        self._hold += 1
        self.held.add(self._hold)
        return [OK, "", self._hold, [["OUT", "FP32", [size], address(self.region.number, 64), 4 * size, 0, 0]], ""]

    def call(self, message):
        """Answer a call, in several pieces if that is allowed."""
        number = message.call
        assert number not in self.calls
        self.calls.add(number)
        ((_, _, _, at, size, _, _),) = message.request[6]
        if message.decoupled:
            for _ in range(number % 4):
                self.connection.say(Answer(number, self.response(size // 4), False))
        if type(at) is int:
            self.connection.say(Unread([number]))
        self.connection.say(Answer(number, None if message.decoupled else self.response(size // 4), True))

    def drop(self, message):
        """A dropped hold must be held, and is dropped only once."""
        for hold in message.holds:
            self.held.remove(hold)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_calls(host, concurrency):
    """Models that call others, and keep, drop or cancel calls: all memory is released once."""
    source = f"{HELPERS}\nclass TritonPythonModel:\n{textwrap.indent(textwrap.dedent(CALLS), '    ')}"
    assert host.load(source, concurrency) == Ready(False, False)
    connection = Connection(host)
    callee = Callee(host, connection)
    handlers = {
        Call: callee.call, ReleaseHold: callee.drop, CancelCall: lambda message: None, Consumed: lambda message: None,
    }  # fmt: skip
    waiting = deque(range(1, 21))
    while waiting:
        batch = waiting.popleft()
        connection.infer(batch, [host.wire()])
        while type(message := host.receive()) is not Result:
            if type(message) is Requeue:
                waiting.extendleft(reversed(message.batches))
            else:
                handlers[type(message)](message)
        assert message.responses[0][0] == OK
        connection.release(message.responses[0][2], 0)
    connection.finish()
    model, writer = host.worker._batches.model, host.worker._writer
    model.arrays.clear()
    gc.collect()
    host.send(Stop())
    while (message := host.receive()) != Stopped():
        handlers[type(message)](message)
    assert callee.held == set(host.worker._calls._drops)  # small ones that would go with the next call
    assert writer._arena.live == 0
    assert host.worker._calls._open == host.worker._calls._inputs == host.worker._calls.waiting == {}
    callee.region.close()

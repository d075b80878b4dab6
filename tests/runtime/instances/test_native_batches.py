# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The batches that are with one native instance, whose handle only notes what it is given: the test is the backend."""

import math
import time

import numpy as np
import pytest

from pyruntime.runtime.config.build import model_spec
from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.inference import InferResponse
from pyruntime.runtime.instances.batches import PLACES_MIN
from pyruntime.runtime.instances.native_batches import NativeBatches
from pyruntime.runtime.instances.native_plan import NativePlan
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.statistics import FailureReason, ModelStatistics
from pyruntime.runtime.scheduling.job import Job
from pyruntime.utils.addresses import address
from pyruntime.utils.errors import Code, InferenceError

CONFIG = (
    "name: 'm' backend: 'b' max_batch_size: 8 input { name: 'IN' data_type: TYPE_FP32 dims: 2 } "
    "output { name: 'OUT' data_type: TYPE_FP32 dims: 2 } "
)
DECOUPLED = "model_transaction_policy { decoupled: true }"
ITERATIVE = "sequence_batching { iterative_sequence: true }"
OUT = [("OUT", "FP32", [1, 2], bytearray(8))]


class Handle:
    """What the extension would have."""

    def __init__(self):
        self.given = []
        self.wakes = 0
        self.cancelled = []
        self.taken = []
        self.fails = False

    def wake(self):
        self.wakes += 1

    def execute(self, jobs, wires, serial, base, wake):
        if self.fails:
            raise OverflowError("int too big to convert")
        self.given.append((jobs, wires, serial, base))

    def cancel(self, serial):
        self.cancelled.append(serial)

    def take(self, serial):
        self.taken.append(serial)


class Owner:
    def __init__(self):
        self.freed = 0
        self.rescheduled = []

    def place_freed(self):
        self.freed += 1

    def reschedule(self, job):
        self.rescheduled.append(job)


class Slot:
    def __init__(self):
        self.freed = 0

    def free(self):
        assert not self.freed
        self.freed += 1


class Request:
    """One request: its job, and what came of it."""

    def __init__(self, parameters="", tensors=()):
        self.outcomes = []
        self.is_over = False
        self.slot = Slot()
        wire = ["", 0, 0, 0, None, parameters, list(tensors)]
        self.job = Job("7", wire, 2, None, [self.slot], self._respond, time.monotonic_ns())

    def _respond(self, outcome, final):
        assert not self.is_over
        self.is_over = final
        self.outcomes.append(outcome)


class Backend:
    """The batches of one instance, and everything around them."""

    def __init__(self, config=""):
        config = parse_model_config((CONFIG + config).encode(), "config.pbtxt")
        self.spec = model_spec(normalize(config, directory_name="m", has_model_file=False, gpus=()))
        self.memory = RequestMemory("m", 4096, 4096)
        self.statistics = ModelStatistics()
        self.owner = Owner()
        plan = NativePlan(self.spec.instances[0], self.spec, 1, None, self.memory, self.statistics, "{}")
        self.batches = NativeBatches(plan, self.owner)
        self.batches.handle = self.handle = Handle()
        self.batches.wake_soon = self.handle.wake
        self.batches.open()

    def execute(self, *requests):
        self.batches.execute([request.job for request in requests])
        return self.handle.given[-1][2] if self.handle.given else 0


@pytest.fixture
def backend():
    made = []

    def make(config=""):
        made.append(Backend(config))
        return made[-1]

    yield make
    for each in made:
        each.memory.close()


def test_one_request(backend):
    """Its response goes on at once; its memory is free when the backend releases it, which also tells the times."""
    backend, request = backend(), Request()
    serial = backend.execute(request)
    assert backend.handle.given == [([request.job], [request.job.wire], serial, backend.batches._base)]
    assert backend.handle.wakes == 1
    assert backend.batches.places == PLACES_MIN - 1
    backend.batches.responded(request.job, True, None, OUT, {"a": 1})
    (response,) = request.outcomes
    assert (response.model_name, response.model_version, response.id) == ("m", 1, "7")
    assert bytes(response.outputs[0].data) == bytes(8)
    assert response.parameters == {"a": 1}
    assert not request.slot.freed
    at = request.job.arrived_ns
    backend.batches.released(request.job, False, (True, at + 1, at + 3, at + 7, at + 15))
    backend.batches.executed(serial, at, at + 20)
    assert request.slot.freed
    statistics = backend.statistics
    assert (statistics.success_count, statistics.inference_count, statistics.execution_count) == (1, 2, 1)
    assert (statistics.queue_ns, statistics.compute_input_ns) == (1, 2)
    assert (statistics.compute_infer_ns, statistics.compute_output_ns) == (4, 8)
    assert not len(backend.batches)
    assert backend.owner.freed == 1


def test_release_before_the_response(backend):
    """A request may be released before it is answered: it is over when both have happened."""
    backend, request = backend(DECOUPLED), Request()
    serial = backend.execute(request)
    backend.batches.released(request.job, False, None)
    backend.batches.executed(serial, 0, 1)
    assert request.slot.freed
    assert len(backend.batches) == 1
    backend.batches.responded(request.job, False, None, OUT, None)
    backend.batches.responded(request.job, True, None, None, None)
    assert [type(outcome) for outcome in request.outcomes] == [InferResponse, type(None)]
    assert not len(backend.batches)


def test_a_response_that_is_not_final(backend):
    """A model that is not decoupled has one response, which is complete when its backend says so."""
    backend, request = backend(), Request()
    backend.execute(request)
    backend.batches.responded(request.job, False, None, OUT, None)
    assert not request.outcomes
    backend.batches.responded(request.job, True, None, None, None)
    assert type(request.outcomes[0]) is InferResponse


def test_no_response(backend):
    """An end without a response is an error, unless the model is decoupled."""
    backend, request = backend(), Request()
    backend.execute(request)
    backend.batches.responded(request.job, True, None, None, None)
    assert request.outcomes[0].message == "the model ended the request without a response"
    backend.batches.released(request.job, False, None)
    assert backend.statistics.failures[FailureReason.BACKEND] == 1


def test_a_failure(backend):
    """What the backend says goes to the client, with its code."""
    backend, request = backend(), Request()
    backend.execute(request)
    backend.batches.responded(request.job, True, (3, "no such thing"), None, None)
    backend.batches.released(request.job, False, None)
    (failure,) = request.outcomes
    assert (failure.message, failure.code) == ("no such thing", Code.INVALID_ARG)
    assert backend.statistics.failure_count == 1


def test_a_backend_that_reports_no_times(backend):
    """The request counts all the same."""
    backend, request = backend(), Request()
    serial = backend.execute(request)
    backend.batches.responded(request.job, True, None, OUT, None)
    backend.batches.released(request.job, False, None)
    backend.batches.executed(serial, 5, 9)
    assert backend.statistics.success_count == backend.statistics.execution_count == 1
    assert backend.statistics.batches[2].compute_infer_ns == 4


def test_a_batch_that_is_reported(backend):
    """A backend's own times of a batch stand for it, once."""
    backend, request = backend(), Request()
    serial = backend.execute(request)
    backend.batches.executed(serial, 0, 100, (2, 1, 2, 4, 8))
    (batch,) = backend.statistics.batches.values()
    assert (batch.count, batch.compute_input_ns, batch.compute_infer_ns, batch.compute_output_ns) == (1, 1, 2, 4)


def test_cancel(backend):
    """The backend is told once, and not after it has answered."""
    backend, request = backend(), Request()
    serial = backend.execute(request)
    backend.batches.cancel(request.job)
    backend.batches.cancel(request.job)
    assert backend.handle.cancelled == [serial]
    backend.batches.responded(request.job, True, (7, "cancelled"), None, None)
    backend.batches.released(request.job, False, None)
    assert backend.statistics.failures[FailureReason.CANCELED] == 1
    backend.batches.cancel(request.job)
    assert len(backend.handle.cancelled) == 1


def test_reschedule(backend):
    """A request that is to be executed again goes back to the scheduler with its memory."""
    backend, request = backend(ITERATIVE), Request()
    serial = backend.execute(request)
    backend.batches.released(request.job, True, None)
    backend.batches.executed(serial, 0, 1)
    assert backend.owner.rescheduled == [request.job]
    assert request.job.instance is None
    assert not request.slot.freed
    assert not len(backend.batches)


def test_parameters(backend):
    """They reach the extension as values."""
    backend, request = backend(), Request('{"a": 1, "b": "x"}')
    backend.execute(request)
    assert backend.handle.given[0][1][0][5] == {"a": 1, "b": "x"}


def test_parameters_that_native_code_has_no_type_for(backend):
    """A client of gRPC may give an integer without a sign, or no number: that is nothing to stumble over."""
    backend, request = backend(), Request('{"large": 9223372036854775808, "odd": null}')
    backend.execute(request)
    parameters = backend.handle.given[0][1][0][5]
    assert parameters["large"] == 2.0**63
    assert type(parameters["large"]) is float
    assert math.isnan(parameters["odd"])


def test_rows_of_a_batch_with_parameters(backend):
    """All of them count, whichever request has any, where the backend does not say how many there were."""
    backend, requests = backend(), [Request(), Request('{"a": 1}'), Request()]
    serial = backend.execute(*requests)
    backend.batches.executed(serial, 0, 1)
    assert list(backend.statistics.batches) == [6]


def test_a_batch_that_the_extension_does_not_take(backend, caplog):
    """Its requests fail, and the instance goes on with others."""
    backend, requests, last = backend(), [Request(), Request()], Request()
    places = backend.batches.places
    backend.handle.fails = True
    backend.execute(*requests)
    for request in requests:
        assert [outcome.message for outcome in request.outcomes] == ["the request could not be given to the backend"]
        assert request.is_over
        assert request.slot.freed
    assert "int too big" in caplog.text
    assert backend.statistics.failure_count == 2
    assert backend.batches.places == places
    assert not len(backend.batches)
    backend.handle.fails = False
    backend.execute(last)
    backend.batches.responded(last.job, True, None, OUT, None)
    assert last.is_over


def test_contents_in_the_request(backend):
    """Tensors of a small call stand in it; the extension finds them in the request memory."""
    backend = backend()
    request = Request(tensors=[("IN", "FP32", [1, 2], b"12345678", 8)])
    backend.execute(request)
    ((_, _, _, at, size),) = backend.handle.given[0][1][0][6]
    assert bytes(backend.memory.region.view[at : at + size]) == b"12345678"
    backend.batches.released(request.job, False, None)
    assert not backend.memory.live


def test_contents_in_another_region(backend):
    """Tensors of a large call lie where its caller has put them: they are found from this region's beginning on."""
    caller = RequestMemory("caller", 4096, 4096)
    slot = caller.allocate(8)
    slot.fill(np.arange(2, dtype=np.float32).tobytes())
    backend = backend()
    request = Request(tensors=[("IN", "FP32", [1, 2], address(caller.region.number, slot.offset), 8)])
    request.job.regions = [caller.region]
    backend.execute(request)
    _, ((_, _, _, _, _, _, tensors),), _, base = backend.handle.given[0]
    where = np.frombuffer(caller.region.view[slot.offset : slot.offset + 8], np.uint8).ctypes.data
    assert base + tensors[0][3] == where
    caller.close()


def test_close(backend):
    """It is idle when every request is answered and released, and every Execute has returned."""
    backend, request, idle = backend(), Request(), []
    serial = backend.execute(request)
    backend.batches.close(lambda: idle.append(True))
    assert not backend.batches.places
    backend.batches.responded(request.job, True, None, OUT, None)
    backend.batches.released(request.job, False, None)
    assert not idle
    backend.batches.executed(serial, 0, 1)
    assert idle == [True]


def test_give_up(backend):
    """What a backend does not answer is answered for it; its memory stays, and what it says later is not heard."""
    backend, request = backend(), Request()
    serial = backend.execute(request)
    backend.batches.give_up(InferenceError("gone"))
    assert [outcome.message for outcome in request.outcomes] == ["gone"]
    assert backend.handle.cancelled == [serial]  # a thread of it may wait for the client
    assert not request.slot.freed
    backend.batches.responded(request.job, True, None, OUT, None)
    backend.batches.released(request.job, False, None)
    backend.batches.executed(serial, 0, 1)
    assert len(request.outcomes) == 1


def test_responses_are_taken(backend):
    """The backend is told once of each but the last one, when its client says so."""
    backend, request = backend(DECOUPLED), Request()
    serial = backend.execute(request)
    for final in (False, False, False, True):
        backend.batches.responded(request.job, final, None, OUT, None)
    first, second, third, last = request.outcomes
    assert backend.handle.taken == []
    second.take()
    assert backend.handle.taken == [serial]
    second.release()
    first.release()
    first.release()
    assert backend.handle.taken == [serial] * 2
    last.take()
    last.release()
    assert backend.handle.taken == [serial] * 2
    third.release()
    assert backend.handle.taken == [serial] * 3


def test_an_error_is_taken_at_once(backend):
    """It is no memory that anybody gives back."""
    backend, request = backend(DECOUPLED), Request()
    serial = backend.execute(request)
    backend.batches.responded(request.job, False, (1, "no"), None, None)
    assert backend.handle.taken == [serial]


def test_one_response_is_not_waited_for(backend):
    """A model that is not decoupled has none ahead."""
    backend, request = backend(), Request()
    backend.execute(request)
    backend.batches.responded(request.job, False, None, OUT, None)
    backend.batches.responded(request.job, True, None, None, None)
    request.outcomes[0].release()
    assert backend.handle.taken == []

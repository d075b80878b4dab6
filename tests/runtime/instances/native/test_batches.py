# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The batches of one native instance, whose handle only notes its calls: the test is the backend."""

import math
import time
import weakref

import numpy as np
import pytest

from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.instances.capacity import CAPACITY_MIN
from pyruntime.runtime.instances.native.batches import CAPACITY_MAX, UNANSWERED_WARNING_S
from pyruntime.runtime.instances.native.instance_spec import NativeInstanceSpec
from pyruntime.runtime.instances.native.plain import LENDING_NS_MAX, PlainBatches
from pyruntime.runtime.instances.output_findings import OutputFindings
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.statistics import FailureReason, ModelStatistics
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.utils.addresses import address
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import PLACES, RequestOptions, encode_requests

from ...model_specs import spec_from

CONFIG = (
    "name: 'm' backend: 'b' max_batch_size: 8 input { name: 'IN' data_type: TYPE_FP32 dims: 2 } "
    "output { name: 'OUT' data_type: TYPE_FP32 dims: 2 } "
)
DECOUPLED = "model_transaction_policy { decoupled: true }"
ITERATIVE = "sequence_batching { iterative_sequence: true }"


class Contents(bytearray):
    """Contents of an output, at an address."""

    address = 0


OUT = [("OUT", "FP32", [1, 2], Contents(8))]


class Handle:
    """Stands for the extension's instance."""

    def __init__(self):
        self.given = []
        self.wakes = 0
        self.cancelled = []
        self.taken = []
        self.fails = False
        self.plain = []
        self.reads = True
        self.clients = []
        self.sending = ()
        self.lendings = []

    def wake(self):
        self.wakes += 1

    def execute(self, jobs, wires, serial, base, wake):
        if self.fails:
            raise OverflowError("int too big to convert")
        self.given.append((jobs, wires, serial, base))

    def execute_plain(self, plain, job, data, at, document_length, serial, client):
        if not self.reads:
            return None
        self.plain.append((job, data, at, document_length, serial))
        self.clients.append(client)
        return 2, "me"

    def lend(self, plain, connection, data, client):
        self.lendings.append((connection, data, client))
        return "lent"

    def claim(self, serial):
        return serial not in self.sending

    def cancel(self, serial):
        self.cancelled.append(serial)

    def take(self, serial):
        self.taken.append(serial)


class Native:
    """The extension, of which there is the handle alone."""

    ClientSocket = str

    def __init__(self, handle):
        self._handle = handle

    def PlainRequests(self, model, inputs, outputs, max_batch_size):
        return "plain"

    def OutputRegion(self, descriptor, size, first_address, cgroups):
        return "region"

    def Instance(self, *args):
        return self._handle


class Connection:
    """One that may be lent, if it has a socket."""

    def __init__(self, has_socket=True):
        self._has_socket = has_socket

    def client_socket(self, make):
        return make(7) if self._has_socket else None


class Owner:
    def __init__(self):
        self.freed = 0
        self.rescheduled = []

    def capacity_freed(self):
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
    """One request: its job, and its outcomes."""

    def __init__(self, parameters="", tensors=()):
        self.outcomes = []
        self.is_over = False
        self.slot = Slot()
        options = RequestOptions(parameters=parameters)
        self.job = Job("7", options, list(tensors), 2, None, [self.slot], self._respond, time.monotonic_ns())
        self.job.is_call = any(type(tensor[3]) is bytes for tensor in tensors)

    def _respond(self, outcome, final):
        assert not self.is_over
        self.is_over = final
        self.outcomes.append(outcome)


class PlainJob:
    """A plain request, as a frontend has it: it is its own job."""

    # Only what instances ask for.
    id = ""
    client = states = trace = None
    regions = ()
    is_padding = cancelled = False
    rows = 2

    def __init__(self):
        self.arrived_ns = time.monotonic_ns()
        self.outcomes = []
        self.encodings = []
        self.rests = []
        self.freed = 0

    def respond(self, outcome, final):
        assert final
        self.outcomes.append(outcome)

    def encoded(self, response):
        self.encodings.append(response)

    def client_socket(self, make):
        return make(7)

    def sent(self, rest):
        self.rests.append(rest)

    def free(self):
        self.freed += 1


class Backend:
    """The batches of one instance, and everything around them."""

    def __init__(self, config=""):
        self.spec = spec_from((CONFIG + config).encode(), files=[])
        self.memory = RequestMemory("m", 4096, 4096)
        self.statistics = ModelStatistics()
        self.owner = Owner()
        findings = OutputFindings(self.spec, "b/libtriton_b.so")
        plan = NativeInstanceSpec(
            self.spec.instances[0], self.spec, 1, None, self.memory, self.statistics, findings, "{}"
        )
        self.handle = Handle()
        self.batches = PlainBatches(plan, self.owner, Native(self.handle), lambda wake: wake())
        self.batches.open()

    def execute(self, *requests):
        self.batches.execute([request.job for request in requests])
        return self.handle.given[-1][2] if self.handle.given else 0

    def execute_plain(self, job):
        """Its serial."""
        assert self.batches.execute_plain(job, b"data", 1, 2)
        return self.handle.plain[-1][-1]


@pytest.fixture
def backend():
    made = []

    def make(config=""):
        made.append(Backend(config))
        return made[-1]

    yield make
    for each in made:
        each.memory.close()
        each.batches.outputs.close()


def test_one_request(backend):
    """Its response goes on at once; its memory is free when the backend releases it, which also tells the times."""
    backend, request = backend(), Request()
    serial = backend.execute(request)
    assert backend.handle.given == [([request.job], encode_requests([request.job]), serial, backend.batches._base)]
    assert backend.handle.wakes == 1
    assert backend.batches.capacity == CAPACITY_MIN - 1
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


def test_an_output_unlike_those_before_is_checked(backend, caplog):
    """Its mistakes are logged once, whether the response comes with the release or alone."""
    backend = backend(DECOUPLED)
    request = Request()
    backend.execute(request)
    for datatype, shape in [("FP32", [1, 2]), ("INT8", [1, 8]), ("FP32", [1, 2]), ("INT8", [1, 8])]:
        backend.batches.responded(request.job, False, None, [("OUT", datatype, shape, Contents(8))], None)
    subject, file = "output 'OUT' of model 'm' has", "(b/libtriton_b.so; said once)"
    assert [record.getMessage() for record in caplog.records] == [
        f"{subject} datatype INT8, and the configuration says FP32 {file}",
        f"{subject} shape [1, 8], and the configuration says [-1, 2] {file}",
    ]


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
    """The client gets the backend's error, with its code."""
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


def test_a_batch_that_fails(backend):
    """Its requests count as failed. The batch counts as executed only if the backend reports it, as in Triton."""
    backend, requests = backend(), [Request(), Request()]
    for request, reported in zip(requests, [False, (2, 1, 2, 4, 8)], strict=True):
        serial = backend.execute(request)
        backend.batches.answered(request.job, (3, "no Execute"), None, None, None)
        backend.batches.executed(serial, 0, 1, reported)
    statistics = backend.statistics
    assert (statistics.failure_count, statistics.success_count, statistics.execution_count) == (2, 0, 1)
    assert backend.batches.capacity


def test_cancel(backend):
    """The backend gets the cancellation once, and not after it has answered."""
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


@pytest.mark.parametrize(("config", "warnings"), [("", 1), (DECOUPLED, 0)])
def test_requests_without_a_response(backend, caplog, config, warnings):
    """A backend that has released a request of a model that is not decoupled, and answers others, is told of once."""
    made, lost = backend(config), [Request(), Request()]
    for request in lost:
        made.execute(request)
        made.batches.released(request.job, False, None)
    second_ns = 1_000_000_000
    now_ns = time.monotonic_ns()
    for since_s in (UNANSWERED_WARNING_S - 1, UNANSWERED_WARNING_S + 1, UNANSWERED_WARNING_S + 2):
        serial = made.execute(other := Request())
        made.batches.responded(other.job, True, None, OUT, None)
        made.batches.released(other.job, False, None)
        made.batches.executed(serial, now_ns, now_ns + since_s * second_ns)
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(found) == warnings
    assert all("request '7' was released 6" in each for each in found)
    assert not lost[0].outcomes


def test_copies_of_a_rescheduled_request(backend):
    """What was copied for one execution is freed before the next one, however often there is one."""
    made = backend(ITERATIVE)
    request = Request(tensors=[("S", "INT32", [1], b"abcd", 4, 0, 0), ("T", "INT32", [0], b"", 0, 0, 0)])
    for _ in range(5):
        made.execute(request)
        assert len(request.job.slots) == 3
        made.batches.released(request.job, True, None)
        assert request.job.slots == [request.slot]
    assert not request.slot.freed
    made.execute(request)
    made.batches.responded(request.job, True, None, OUT, None)
    made.batches.released(request.job, False, None)
    assert request.slot.freed
    assert not made.memory.live


def rescheduled(batches, number=3):
    """A request that its backend has released to have it executed again."""
    request = Request()
    request.job.serial = number
    batches.execute(request)
    batches.batches.released(request.job, True, None)
    return request


def numbers(request):
    """The first bytes of the responses, None where there was an end alone, and messages of failures."""
    return [
        each and (each.message if isinstance(each, InferenceError) else bytes(each.outputs[0].data)[0])
        for each in request.outcomes
    ]


def out(number):
    """The outputs of a response."""
    return [("OUT", "FP32", [1, 2], bytearray([number] * 8))]


class TestResponsesOfEarlierExecutions:
    """A backend may send responses after it has released a request to have it executed again."""

    def test_while_it_queues(self, backend):
        """They go to the client."""
        request = rescheduled(backend(ITERATIVE + DECOUPLED))
        assert request.job.instance is None
        request.job.respond.earlier(request.job, False, None, out(1), None)
        assert (numbers(request), request.is_over) == ([1], False)

    def test_while_another_instance_executes_it(self, backend):
        """They go to the client, between those of the other execution."""
        request, other = rescheduled(backend(ITERATIVE + DECOUPLED)), backend(ITERATIVE + DECOUPLED)
        serial = other.execute(request)
        other.batches.responded(request.job, False, None, out(2), None)
        request.job.respond.earlier(request.job, False, None, out(1), None)
        other.batches.responded(request.job, True, None, None, None)
        other.batches.released(request.job, False, None)
        other.batches.executed(serial, 0, 1)
        assert numbers(request) == [2, 1, None]
        assert not len(other.batches)

    def test_when_it_is_over(self, backend):
        """They are dropped: the client has its last response, and the memory for outputs may be gone."""
        request = rescheduled(made := backend(ITERATIVE + DECOUPLED))
        made.execute(request)
        made.batches.responded(request.job, True, None, None, None)
        made.batches.released(request.job, False, None)
        request.job.respond.earlier(request.job, True, None, out(1), None)
        assert numbers(request) == [None]

    @pytest.mark.parametrize("is_last", [True, False])
    def test_the_last_one(self, backend, is_last):
        """It is the last for the client. The request is executed again all the same, and what is sent then is dropped,
        so that the backend does not wait until a client takes it."""
        request = rescheduled(made := backend(ITERATIVE + DECOUPLED))
        request.job.respond.earlier(request.job, True, (3, "no more"), None, None)
        serial = made.execute(request)
        made.batches.responded(request.job, False, None, out(1), None)
        assert made.handle.taken == [serial]
        made.batches.responded(request.job, True, None, out(2) if is_last else None, None)
        made.batches.released(request.job, False, None)
        assert numbers(request) == ["no more"]
        assert request.slot.freed

    def test_rescheduled_again(self, backend):
        """Responses of each execution go to the client."""
        request = rescheduled(made := backend(ITERATIVE + DECOUPLED))
        made.execute(request)
        made.batches.released(request.job, True, None)
        for number in (1, 2):
            request.job.respond.earlier(request.job, False, None, out(number), None)
        assert numbers(request) == [1, 2]

    def test_of_a_model_that_is_not_decoupled(self, backend):
        """Its response is kept until the backend says that it is the last, in whatever execution."""
        request, other = rescheduled(backend(ITERATIVE)), backend(ITERATIVE)
        request.job.respond.earlier(request.job, False, None, out(1), None)
        other.execute(request)
        assert not request.outcomes
        other.batches.responded(request.job, True, None, None, None)
        assert numbers(request) == [1]

    def test_sent_before_the_reschedule(self, backend):
        """The same for a response of such a model that was sent in time."""
        made, other, request = backend(ITERATIVE), backend(ITERATIVE), Request()
        made.execute(request)
        made.batches.responded(request.job, False, None, out(1), None)
        made.batches.released(request.job, True, None)
        other.execute(request)
        other.batches.responded(request.job, True, None, None, None)
        assert numbers(request) == [1]

    @pytest.mark.parametrize("outputs", [None, out(1)])
    def test_the_last_of_a_model_that_is_not_decoupled(self, backend, outputs):
        """An end without a response is an error."""
        request = rescheduled(backend(ITERATIVE))
        request.job.respond.earlier(request.job, True, None, outputs, None)
        assert numbers(request) == [1 if outputs else "the model ended the request without a response"]
        assert request.is_over


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
    capacity = backend.batches.capacity
    backend.handle.fails = True
    backend.execute(*requests)
    for request in requests:
        assert [outcome.message for outcome in request.outcomes] == ["the request could not be given to the backend"]
        assert request.is_over
        assert request.slot.freed
    assert "int too big" in caplog.text
    assert backend.statistics.failure_count == 2
    assert backend.batches.capacity == capacity
    assert not len(backend.batches)
    backend.handle.fails = False
    backend.execute(last)
    backend.batches.responded(last.job, True, None, OUT, None)
    assert last.is_over


def test_contents_in_the_request(backend):
    """Tensors of a small call stand in it; the extension finds them in the request memory."""
    backend = backend()
    request = Request(tensors=[("IN", "FP32", [1, 2], b"12345678", 8, 0, 0)])
    backend.execute(request)
    ((_, _, _, at, size, _, _),) = backend.handle.given[0][1][0][6]
    assert bytes(backend.memory.region.view[at : at + size]) == b"12345678"
    backend.batches.released(request.job, False, None)
    assert not backend.memory.live


def test_contents_in_another_region(backend):
    """Tensors of a large call lie where its caller has put them: they are found from this region's beginning on."""
    caller = RequestMemory("caller", 4096, 4096)
    slot = caller.allocate(8)
    slot.fill(np.arange(2, dtype=np.float32).tobytes())
    backend = backend()
    request = Request(tensors=[("IN", "FP32", [1, 2], address(caller.region.number, slot.offset), 8, 0, 0)])
    request.job.regions = [caller.region]
    backend.execute(request)
    _, (wire,), _, base = backend.handle.given[0]
    where = np.frombuffer(caller.region.view[slot.offset : slot.offset + 8], np.uint8).ctypes.data
    assert base + wire[6][0][3] == where
    caller.close()


def test_close(backend):
    """It is idle when every request is answered and released, and every Execute has returned."""
    backend, request, idle = backend(), Request(), []
    serial = backend.execute(request)
    backend.batches.close(lambda: idle.append(True))
    assert not backend.batches.capacity
    backend.batches.responded(request.job, True, None, OUT, None)
    backend.batches.released(request.job, False, None)
    assert not idle
    backend.batches.executed(serial, 0, 1)
    assert idle == [True]


def test_give_up(backend):
    """A request that its backend does not answer is answered; its memory stays, and later answers are ignored."""
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
    """The backend is notified once of each response that its client has taken, but not of the last one."""
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


def call(tensors=()):
    """A request of another model."""
    request = Request(tensors=tensors)
    request.job.is_call = True
    return request


def shared_output(backend):
    """An output in the region of an instance that has one."""
    contents = Contents(8)
    contents.address = address(backend.batches.outputs.region.number, 4096)
    return ("OUT", "FP32", [1, 2], contents)


def test_requests_of_models_have_a_region(backend):
    """Native code gets the region for large outputs with them, and with no others; also if they have no inputs."""
    backend = backend()
    backend.execute(Request())
    assert backend.batches.outputs.region is None
    backend.execute(Request(), call())
    (*_, (_, wires, *_)) = backend.handle.given
    assert [wire[PLACES] for wire in wires] == [None, "region"]


def test_output_in_the_region(backend):
    """A response refers to the region, and keeps the output until it is released."""
    backend, request = backend(), call()
    backend.execute(request)
    output = shared_output(backend)
    backend.batches.responded(request.job, True, None, [output], None)
    (response,) = request.outcomes
    assert response.outputs[0].address == output[-1].address
    assert list(response.regions) == [backend.batches.outputs.region]
    kept = weakref.ref(output[-1])
    response.outputs.clear()
    del output
    assert kept() is not None
    response.release()
    assert kept() is None


def test_streamed_output_in_the_region(backend):
    """The output of one response of a stream is kept when it is taken, and until it is released."""
    backend, request = backend(DECOUPLED), call()
    serial = backend.execute(request)
    output = shared_output(backend)
    backend.batches.responded(request.job, False, None, [output], None)
    (response,) = request.outcomes
    kept = weakref.ref(output[-1])
    response.outputs.clear()
    del output
    response.take()
    assert backend.handle.taken == [serial]
    assert kept() is not None
    response.release()
    assert backend.handle.taken == [serial]
    assert kept() is None


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


class TestPlain:
    """Requests that the extension reads."""

    def times(self, job):
        """Times of a success, as a backend reports them."""
        at = job.arrived_ns
        return True, at + 1, at + 3, at + 7, at + 15

    def test_encoded(self, backend):
        """Its response goes on as it is, and one event says all that there is to say."""
        backend, job = backend(), PlainJob()
        capacity = backend.batches.capacity
        serial = backend.execute_plain(job)
        assert backend.handle.plain == [(job, b"data", 1, 2, serial)]
        assert (job.id, job.rows) == ("me", 2)
        assert (job.instance, job.serial) == (backend.batches, serial)
        assert (backend.handle.wakes, backend.batches.capacity) == (1, capacity - 1)
        assert not backend.batches.is_idle
        assert len(backend.batches) == 2
        at = job.arrived_ns
        backend.batches.encoded(
            job, b"response", self.times(job), (serial, at, at + 20, (2, at, at + 1, at + 3, at + 7))
        )
        assert job.encodings == [b"response"]
        assert not job.outcomes
        assert not len(backend.batches)
        assert backend.owner.freed == 1
        assert backend.batches.capacity >= capacity
        statistics = backend.statistics
        assert (statistics.success_count, statistics.inference_count, statistics.execution_count) == (1, 2, 1)
        assert (statistics.queue_ns, statistics.compute_input_ns) == (1, 2)
        assert (statistics.compute_infer_ns, statistics.compute_output_ns) == (4, 8)
        (batch,) = statistics.batches.values()
        assert (batch.count, batch.compute_input_ns, batch.compute_infer_ns, batch.compute_output_ns) == (1, 1, 2, 4)

    def test_answered(self, backend):
        """A response that is not plain comes as any other does."""
        backend, job = backend(), PlainJob()
        serial = backend.execute_plain(job)
        backend.batches.answered(job, None, OUT, {"a": 1}, self.times(job), (serial, 5, 9, None))
        ((response,), ()) = job.outcomes, job.encodings
        assert (response.model_name, response.model_version, response.id) == ("m", 1, "me")
        assert response.parameters == {"a": 1}
        assert not len(backend.batches)
        assert backend.statistics.batches[2].compute_infer_ns == 4
        assert backend.statistics.success_count == 1

    @pytest.mark.parametrize("is_encoded", [False, True])
    def test_execute_returns_later(self, backend, is_encoded):
        """The place is free only then."""
        backend, job = backend(), PlainJob()
        capacity = backend.batches.capacity
        serial = backend.execute_plain(job)
        if is_encoded:
            backend.batches.encoded(job, b"response", self.times(job), None)
        else:
            backend.batches.answered(job, None, OUT, None, self.times(job))
        assert len(job.outcomes) + len(job.encodings) == 1
        assert not backend.batches.is_idle
        assert (backend.batches.capacity, backend.owner.freed) == (capacity - 1, 0)
        backend.batches.executed(serial, 0, 1)
        assert not len(backend.batches)
        assert backend.owner.freed == 1

    def test_execute_has_returned_before(self, backend):
        """A backend that answers from another thread frees its place first."""
        backend, job = backend(), PlainJob()
        serial = backend.execute_plain(job)
        backend.batches.executed(serial, 0, 1)
        assert backend.batches.is_idle
        assert len(backend.batches) == 1
        backend.batches.encoded(job, b"response", self.times(job), None)
        assert job.encodings == [b"response"]
        assert not len(backend.batches)

    @pytest.mark.parametrize("released_first", [False, True])
    def test_in_parts(self, backend, released_first):
        """Response, release and return may come one by one."""
        backend, job = backend(), PlainJob()
        serial = backend.execute_plain(job)
        steps = [lambda: backend.batches.responded(job, True, None, OUT, None)]
        steps.insert(0 if released_first else 1, lambda: backend.batches.released(job, False, None))
        for step in [*steps, lambda: backend.batches.executed(serial, 0, 1)]:
            assert len(backend.batches)
            step()
        assert [type(outcome) for outcome in job.outcomes] == [InferResponse]
        assert not len(backend.batches)
        assert backend.statistics.success_count == backend.statistics.execution_count == 1

    @pytest.mark.parametrize("times", [None, (False, 1, 2, 3, 4)])
    def test_a_failure(self, backend, times):
        """The client gets the backend's error; the event may include the end of Execute."""
        backend, job = backend(), PlainJob()
        serial = backend.execute_plain(job)
        backend.batches.answered(job, (3, "no such thing"), None, None, times, (serial, 0, 1, None))
        (failure,) = job.outcomes
        assert (failure.message, failure.code) == ("no such thing", Code.INVALID_ARG)
        assert backend.statistics.failures[FailureReason.BACKEND] == 1
        assert backend.statistics.success_count == 0
        assert not len(backend.batches)
        assert backend.owner.freed == 1

    def test_a_backend_that_reports_no_times(self, backend):
        """It counts from its arrival on."""
        backend, job = backend(), PlainJob()
        serial = backend.execute_plain(job)
        backend.batches.answered(job, None, OUT, None, None, (serial, 5, 9, None))
        assert [type(outcome) for outcome in job.outcomes] == [InferResponse]
        assert backend.statistics.success_count == 1
        assert backend.statistics.queue_ns == 0
        assert not len(backend.batches)

    def test_not_plain(self, backend):
        """A request that the extension does not read leaves no trace."""
        backend, job, request = backend(), PlainJob(), Request()
        backend.handle.reads = False
        capacity = backend.batches.capacity
        assert not backend.batches.execute_plain(job, b"data", 1, 2)
        assert (backend.batches.capacity, len(backend.batches), backend.handle.wakes) == (capacity, 0, 0)
        backend.handle.reads = True
        first = backend.execute_plain(job)
        # It has not taken a serial either.
        assert backend.execute(request) == first + 1
        assert backend.execute_plain(PlainJob()) == first + 2

    def test_numbers(self, backend):
        """Each request has one of its own, also behind a batch of several."""
        backend = backend()
        assert backend.execute(Request(), Request(), Request()) == 1
        assert backend.execute_plain(PlainJob()) == 4
        assert backend.execute(Request()) == 5
        assert backend.batches.waiting == 4  # rows behind those that are executed

    def test_cancel(self, backend):
        """The backend gets the cancellation once, and not after it has answered."""
        backend, job = backend(), PlainJob()
        serial = backend.execute_plain(job)
        backend.batches.cancel(job)
        backend.batches.cancel(job)
        assert backend.handle.cancelled == [serial]
        backend.batches.answered(job, (7, "cancelled"), None, None, None, (serial, 0, 1, None))
        assert backend.statistics.failures[FailureReason.CANCELED] == 1
        backend.batches.cancel(job)
        assert len(backend.handle.cancelled) == 1
        late = PlainJob()
        serial = backend.execute_plain(late)
        backend.batches.encoded(late, b"response", self.times(late), (serial, 0, 1, None))
        backend.batches.cancel(late)
        assert len(backend.handle.cancelled) == 1

    @pytest.mark.parametrize("is_merged", [False, True])
    @pytest.mark.parametrize("is_encoded", [False, True])
    def test_close(self, backend, is_encoded, is_merged):
        """The batches are idle when all plain requests have ended, for any order of events, and take no more."""
        backend, job, idle = backend(), PlainJob(), []
        serial = backend.execute_plain(job)
        backend.batches.close(lambda: idle.append(True))
        execution = (serial, 0, 1, None)
        with_it = execution if is_merged else None
        if is_encoded:
            backend.batches.encoded(job, b"response", self.times(job), with_it)
        else:
            backend.batches.answered(job, None, OUT, None, self.times(job), with_it)
        if not is_merged:
            assert not idle
            backend.batches.executed(*execution)
        assert idle == [True]
        assert backend.batches.capacity == 0

    def test_close_with_the_answer_last(self, backend):
        """The answer may be the last event."""
        backend, job, idle = backend(), PlainJob(), []
        serial = backend.execute_plain(job)
        backend.batches.close(lambda: idle.append(True))
        backend.batches.executed(serial, 0, 1)
        assert not idle
        backend.batches.encoded(job, b"response", self.times(job), None)
        assert idle == [True]

    @pytest.mark.parametrize("is_encoded", [False, True])
    def test_give_up(self, backend, is_encoded):
        """It is answered for the backend, whose own answer is not heard; it has come to its end all the same."""
        backend, job, idle = backend(), PlainJob(), []
        serial = backend.execute_plain(job)
        backend.batches.close(lambda: idle.append(True))
        backend.batches.give_up(InferenceError("gone"))
        assert [outcome.message for outcome in job.outcomes] == ["gone"]
        assert backend.handle.cancelled == [serial]
        execution = (serial, 0, 1, None)
        if is_encoded:
            backend.batches.encoded(job, b"response", self.times(job), execution)
        else:
            backend.batches.answered(job, None, OUT, None, self.times(job), execution)
        assert len(job.outcomes) == 1
        assert not job.encodings
        assert not len(backend.batches)
        assert idle == [True]
        assert backend.statistics.failure_count == 1

    def make_quick(self, backend):
        """Have the instance take as many requests as it ever does."""
        for _ in range(100):
            job = PlainJob()
            serial = backend.execute_plain(job)
            backend.batches.encoded(job, b"response", self.times(job), (serial, 0, 1, None))
        return backend

    def test_who_may_send(self, backend):
        """The backend may answer clients itself only while there is capacity: else the end must be reported at once."""
        backend = self.make_quick(backend())
        backend.handle.clients.clear()
        for _ in range(CAPACITY_MAX - 1):
            backend.execute_plain(PlainJob())
        few = backend.handle.clients.index(None)
        assert backend.handle.clients == ["7"] * few + [None] * (CAPACITY_MAX - 1 - few)
        assert 0 < few < CAPACITY_MAX - 1

    @pytest.mark.parametrize("rest", [None, b"rest"])
    def test_sent(self, backend, rest):
        """The duration ends with the sending, whenever the event arrives, also if the backend reports no times."""
        for times in (True, None):
            made, job = backend(), PlainJob()
            serial = made.execute_plain(job)
            at = job.arrived_ns
            reported = self.times(job) if times else None
            made.batches.sent(job, rest, at + 100, True, reported, (serial, at, at + 20, None))
            assert (job.rests, job.outcomes, job.encodings) == ([rest], [], [])
            assert not len(made.batches)
            statistics = made.statistics
            assert (statistics.success_count, statistics.execution_count) == (1, 1)
            assert statistics.compute_infer_ns == (4 if times else 100)

    def test_over_after_it_is_sent(self, backend):
        """The duration is never less than its parts, also if the backend is over with the request later."""
        made, job = backend(), PlainJob()
        serial = made.execute_plain(job)
        at = job.arrived_ns
        made.batches.sent(job, None, at + 10, True, self.times(job), (serial, at, at + 20, None))
        assert made.statistics.success_ns == 15

    def test_sent_and_released_later(self, backend):
        """It is over with its release."""
        backend, job, idle = backend(), PlainJob(), []
        serial = backend.execute_plain(job)
        backend.batches.sent(job, None, job.arrived_ns, False, None, None)
        assert job.rests == [None]
        backend.batches.close(lambda: idle.append(True))
        backend.batches.executed(serial, 0, 1)
        assert not idle
        backend.batches.released(job, False, self.times(job))
        assert idle == [True]
        assert backend.statistics.success_count == 1

    @pytest.mark.parametrize("is_merged", [False, True])
    def test_close_with_what_was_sent(self, backend, is_merged):
        """The batches are idle when the event of the sent response has arrived."""
        backend, job, idle = backend(), PlainJob(), []
        serial = backend.execute_plain(job)
        backend.batches.close(lambda: idle.append(True))
        backend.batches.sent(
            job, None, job.arrived_ns, True, self.times(job), (serial, 0, 1, None) if is_merged else None
        )
        if not is_merged:
            assert not idle
            backend.batches.executed(serial, 0, 1)
        assert idle == [True]

    def test_give_up_what_is_being_sent(self, backend):
        """It is not answered a second time."""
        backend, sending, other = backend(), PlainJob(), PlainJob()
        serial = backend.execute_plain(sending)
        backend.execute_plain(other)
        backend.handle.sending = (serial,)
        backend.batches.give_up(InferenceError("gone"))
        assert sending.outcomes == []
        assert [outcome.message for outcome in other.outcomes] == ["gone"]
        backend.batches.sent(sending, None, sending.arrived_ns, True, self.times(sending), (serial, 0, 1, None))
        assert sending.rests == [None]

    def test_a_strange_order_of_news(self, backend):
        """The end of an unknown batch changes nothing."""
        backend = backend()
        capacity = backend.batches.capacity
        backend.batches.executed(7, 0, 1)
        assert (backend.batches.capacity, backend.owner.freed, backend.statistics.execution_count) == (capacity, 0, 0)

    def test_places(self, backend):
        """Quick requests may be there by the dozen, and each that comes back frees its place."""
        backend = backend()
        for _ in range(100):
            job = PlainJob()
            serial = backend.execute_plain(job)
            backend.batches.encoded(job, b"response", self.times(job), (serial, 0, 1, None))
        assert backend.batches.capacity == CAPACITY_MAX
        jobs = [PlainJob() for _ in range(CAPACITY_MAX)]
        serials = [backend.execute_plain(job) for job in jobs]
        assert backend.batches.capacity == 0
        for index, (job, serial) in enumerate(zip(jobs, serials, strict=True)):
            backend.batches.encoded(job, b"response", self.times(job), (serial, 0, 1, None))
            assert backend.batches.capacity == index + 1
        assert not len(backend.batches)


class TestLending:
    """Connections that the instance reads by itself."""

    # Of times, for so many requests: see NativeBatches.counted.
    SUMS = (10, 20, 30, 40, 150, 21, 31, 41)

    @pytest.fixture
    def quick(self, backend):
        """An instance that is known to be quick."""
        made = backend()
        made.batches.counted(8, 2, (*self.SUMS, 8 * LENDING_NS_MAX))
        assert made.batches.may_read
        return made

    def lend(self, backend, connection=None):
        return backend.batches.lend(connection or Connection(), b"data")

    def test_lent(self, quick):
        """With a socket of its own."""
        connection = Connection()
        assert self.lend(quick, connection) == "lent"
        assert quick.handle.lendings == [(connection, b"data", "7")]

    def test_without_a_socket(self, quick):
        """A connection without a socket cannot be lent."""
        assert self.lend(quick, Connection(has_socket=False)) is None
        assert quick.handle.lendings == []

    def test_slow(self, quick):
        """One that has become slow may not, until it is quick again."""
        quick.batches.counted(8, 2, (*self.SUMS, 8 * LENDING_NS_MAX + 8))
        assert self.lend(quick) is None
        quick.batches.counted(1, 2, (*self.SUMS, 0))
        assert self.lend(quick) == "lent"

    def test_a_few_say_little(self, quick):
        """One slow request does not make a slow instance; nor one quick request a quick one."""
        for durations, may in (([2 * LENDING_NS_MAX], False), ([0], True), ([2], True), ([9 * LENDING_NS_MAX], False)):
            for duration in durations:
                quick.batches.counted(1, 2, (*self.SUMS, duration))
            assert quick.batches.may_read is may

    def test_one_that_makes_requests(self, quick):
        """An instance that makes calls is not lent connections: requests must not wait behind what it reads."""
        quick.batches.worker.expect()
        assert self.lend(quick) is None

    def test_closed(self, quick):
        """It takes nothing any more."""
        quick.batches.close(lambda: None)
        assert self.lend(quick) is None

    def test_latencies(self, backend):
        """Sums are not enough where quantiles are wanted."""
        backend = backend()
        backend.batches.counted(8, 2, (*self.SUMS, 0))
        backend.statistics.latencies = "wanted"
        assert self.lend(backend) is None

    def test_counted(self, backend):
        """Statistics are those of as many requests, each of which was a batch."""
        backend = backend()
        backend.batches.counted(3, 2, (*self.SUMS, 90))
        statistics = backend.statistics
        assert (statistics.success_count, statistics.inference_count, statistics.execution_count) == (3, 6, 3)
        assert (statistics.queue_ns, statistics.compute_input_ns) == (10, 20)
        assert (statistics.compute_infer_ns, statistics.compute_output_ns, statistics.success_ns) == (30, 40, 150)
        (batch,) = statistics.batches.values()
        assert (batch.count, batch.compute_input_ns, batch.compute_infer_ns, batch.compute_output_ns) == (3, 21, 31, 41)
        assert statistics.last_inference_ms > 0
        assert backend.batches.capacity >= CAPACITY_MIN

    def test_adopted(self, backend):
        """It is a batch like others, which was given to the backend when it arrived."""
        backend, job = backend(), PlainJob()
        capacity = backend.batches.capacity
        backend.batches.adopt(job, 1 << 62)
        assert (job.instance, job.serial) == (backend.batches, 1 << 62)
        assert (len(backend.batches), backend.batches.capacity) == (2, capacity - 1)
        backend.batches.sent(job, None, job.arrived_ns + 5, True, None, (1 << 62, 0, 1, None))
        assert job.rests == [None]
        assert not len(backend.batches)
        assert (backend.statistics.success_count, backend.statistics.compute_infer_ns) == (1, 5)
        assert backend.owner.freed == 1

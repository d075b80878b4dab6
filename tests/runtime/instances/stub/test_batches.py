# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The batches of one stub, over a connection that only notes its calls: the test is the stub.

Every request fails the test if it is answered after its last response, or if its memory is freed twice.
"""

import contextlib
import time
from dataclasses import replace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.execution.states import SequenceStates, no_copies
from pyruntime.runtime.instances.capacity import CAPACITY_MIN
from pyruntime.runtime.instances.output_findings import OutputFindings
from pyruntime.runtime.instances.stub.batches import StubBatches
from pyruntime.runtime.instances.stub.instance_spec import StubInstanceSpec
from pyruntime.runtime.instances.stub.supervisor import ProcessExit
from pyruntime.runtime.observe.statistics import FailureReason, ModelStatistics
from pyruntime.runtime.observe.statistics_entry import statistics_entry
from pyruntime.runtime.regions import create_region
from pyruntime.runtime.requests.types import InferResponse, free_slots
from pyruntime.utils.errors import Code, InferenceError, LocalError, PeerError
from pyruntime.utils.flow_control import RESPONSES_AHEAD_MAX
from pyruntime.utils.messages import (
    NO_SLOT,
    OK,
    RESCHEDULED,
    SENDER,
    Failed,
    Requeue,
    Respond,
    Result,
    Retired,
)
from pyruntime.utils.regions import FLAGS_BYTES
from pyruntime.utils.request_codec import RequestOptions

from ...model_specs import spec_from

CONFIG = (
    "name: 'm' max_batch_size: 8 input { name: 'IN' data_type: TYPE_FP32 dims: 2 } "
    "output { name: 'OUT' data_type: TYPE_FP32 dims: 2 } "
)
DECOUPLED = "model_transaction_policy { decoupled: true }"
ITERATIVE = "sequence_batching { iterative_sequence: true }"
KILLED = ProcessExit(-9)
NO = [Code.NOT_FOUND, "no", NO_SLOT, [], ""]
NOT_RESCHEDULABLE = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
    "such a flag."
)


def response(slot=0):
    """A response in this slot, as the stub writes it."""
    return [OK, "", slot, [["OUT", "FP32", [1, 2], slot, 8, 0, 0]], ""]


EMPTY = [OK, "", NO_SLOT, [], ""]


def result(batch, *responses, retained=()):
    return Result(batch, list(responses), list(retained), 0, 0)


def failed(batch, retained=()):
    return Failed(batch, "ValueError: no", list(retained), 0, 0)


class Slot:
    """A piece of request memory."""

    offset = 0
    view = memoryview(b"")

    def __init__(self):
        self.freed = 0

    def free(self):
        assert not self.freed
        self.freed += 1


class Request:
    """One request: its job, and its outcomes. `flags` are those of a sequence."""

    def __init__(self, flags=0, regions=()):
        self.outcomes = []
        self.is_over = False
        self.slot = Slot()
        self.job = Job("7", RequestOptions(flags=flags), [], 1, None, [self.slot], self._respond, time.monotonic_ns())
        self.job.regions = regions

    def _respond(self, outcome, final):
        assert not self.is_over
        assert outcome is not None or final
        self.is_over = final
        self.outcomes.append(outcome)

    @property
    def is_free(self):
        return bool(self.slot.freed)

    @property
    def response(self):
        """The one response that it got, and got to the end."""
        assert self.is_over
        (outcome,) = self.outcomes
        assert type(outcome) is InferResponse
        return outcome

    @property
    def failure(self):
        """The one failure that it got."""
        assert self.is_over
        (outcome,) = self.outcomes
        assert type(outcome) is InferenceError
        return outcome


class Connection:
    """Notes its calls. `flags` are the bytes that are set, by their place."""

    def __init__(self):
        self.responses = create_region("responses of a test")
        # One object has the methods of all parts.
        self.regions = self.returns = self.link = self
        self.batches = []
        self.at_once = []
        self.granted = []
        self.released = []
        self.credits = []
        self.forgotten = []
        self.flags = set()
        self.refusal = None
        self.kills = []

    def kill(self, why):
        self.kills.append(why)

    def infer(self, batch, requests, at_once):
        if self.refusal is not None:
            raise self.refusal
        self.batches.append((batch, requests))
        self.at_once.append(at_once)

    def grant(self, region):
        self.granted.append(region)

    def release(self, slot, size):
        self.released.append((slot, size))

    def leased(self, number):
        raise PeerError(f"region {number} is not memory on a GPU that the stub leases")

    def credit(self, serial, size):
        self.credits.append((serial, size))

    def forget_credit(self, serial):
        self.forgotten.append(serial)

    def set_flag(self, serial, value):
        (self.flags.add if value else self.flags.discard)(serial % FLAGS_BYTES)


class Owner:
    def __init__(self):
        self.places_freed = 0
        self.put_backs = []
        self.rescheduled = []

    def capacity_freed(self):
        self.places_freed += 1

    def put_back(self, batch):
        self.put_backs.append(batch)

    def reschedule(self, job):
        self.rescheduled.append(job)


class Calls:
    """Those of batches that call no model: notes which ones were cancelled."""

    def __init__(self):
        self.cancelled = []

    def waiting(self, batch):
        return ()

    def cancel_batch(self, number):
        self.cancelled.append(number)

    def free_unread(self, slots):
        free_slots(slots)


class Bench:
    """The batches of a stub that serves, of a model with so much more configuration."""

    def __init__(self, text="", concurrency=1, gpu=None, memory=None, server=None):
        spec = spec_from(CONFIG + text)
        self.statistics = ModelStatistics()
        findings = OutputFindings(spec, "model.py")
        plan = StubInstanceSpec("m_0", spec, 3, {}, {}, memory, 1 << 20, self.statistics, server, findings, gpu=gpu)
        self.connection = Connection()
        self.owner = Owner()
        self.calls = Calls()
        self.batches = StubBatches(replace(plan, concurrency=concurrency), self.connection, self.owner, self.calls)
        self.batches.open()
        self.requests = []

    def post(self, *requests):
        """Post a batch of these requests, or of one; it, or all of them."""
        requests = requests or (Request(),)
        self.batches.execute([request.job for request in requests])
        self.requests += requests
        return requests[0] if len(requests) == 1 else requests

    def respond(self, serial, response, final, start_ns=0):
        self.batches.responded(Respond(serial, response, final, start_ns))

    def close(self):
        self.connection.responses.close()


@pytest.fixture
def benches():
    """A function that makes a bench."""
    made = []

    def make(*args, **kwargs):
        made.append(Bench(*args, **kwargs))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(benches):
    return benches()


@pytest.fixture
def decoupled(benches):
    return benches(DECOUPLED)


class TestPost:
    def test_serials(self, bench):
        """A batch goes by the serial of its first request; requests are counted from 1 on."""
        bench.post(Request(), Request())
        bench.post(Request())
        assert [number for number, _ in bench.connection.batches] == [1, 3]
        assert [request.job.serial for request in bench.requests] == [1, 2, 3]
        assert all(request.job.instance is bench.batches for request in bench.requests)

    def test_grants_what_inputs_lie_in(self, bench):
        """Regions that a request refers to come before it."""
        bench.connection.infer = lambda *message: bench.connection.granted.append("infer")
        bench.post(Request(regions=["one", "two"]), Request(regions=["three"]))
        assert bench.connection.granted == ["one", "two", "three", "infer"]

    def test_at_once_to_a_thread_that_is_idle(self, benches):
        """A thread that has nothing to do begins at once; a batch behind another one may wait for the host's turn."""
        bench = benches(concurrency=2)
        for _ in range(3):
            bench.post()
        assert bench.connection.at_once == [True, True, False]
        bench.batches.answered(result(1, EMPTY))
        bench.batches.answered(result(2, EMPTY))
        bench.post()
        assert bench.connection.at_once[3:] == [True]

    def test_that_cannot_be_sent(self, bench):
        """A batch that does not fit a frame fails, is not with the stub, and takes no place and no serial."""
        bench.connection.refusal = LocalError("too large")
        first, second = bench.post(Request(), Request())
        assert "the request cannot be sent to m_0: too large" in first.failure.message
        assert second.failure is not None
        assert first.is_free
        assert second.is_free
        assert first.job.instance is None
        assert (bench.batches.capacity, len(bench.batches)) == (CAPACITY_MIN, 0)
        bench.connection.refusal = None
        bench.post()
        assert bench.connection.batches[0][0] == 1

    def test_whose_memory_cannot_be_granted(self, bench):
        """A request whose inputs cannot be granted to the stub fails, and is not posted."""

        def grant(region):
            raise LocalError("no more descriptors")

        bench.connection.grant = grant
        assert "no more descriptors" in bench.post(Request(regions=["one"])).failure.message
        assert bench.connection.batches == []


class TestResponse:
    def test_comes_before_what_follows_from_it(self, bench):
        """Whoever waits for a response does not wait until its memory is free and it is counted."""
        request = bench.post()
        seen = []
        request.job.respond = lambda outcome, final: seen.append((request.is_free, bench.statistics.success_count))
        bench.batches.answered(result(1, EMPTY))
        assert seen == [(False, 0)]
        assert request.is_free
        assert bench.statistics.success_count == 1

    def test_comes_after_inputs_of_another_model_are_free(self, bench):
        """A caller has room for the inputs of its next call as soon as it has the response."""
        request = bench.post(Request(regions=["a caller's"]))
        seen = []
        request.job.respond = lambda outcome, final: seen.append(request.is_free)
        bench.batches.answered(result(1, EMPTY))
        assert seen == [True]

    def test_comes_when_there_is_room(self, bench):
        """What a response leads to may need the place of its batch."""
        request = bench.post()
        capacities = []
        request.job.respond = lambda outcome, final: capacities.append(bench.batches.capacity)
        bench.batches.answered(result(1, EMPTY))
        assert capacities == [bench.batches.capacity]


class TestSenders:
    """Of a model that is not decoupled: a sender answers once."""

    def test_after_execute(self, bench):
        """A request that execute left to a sender is answered when the sender answers it; its inputs are free then."""
        request = bench.post()
        bench.batches.answered(result(1, SENDER))
        assert request.is_free
        assert request.outcomes == []
        assert bench.statistics.execution_count == 1
        assert bench.statistics.success_count == 0
        assert len(bench.batches) == 1
        assert bench.batches.is_idle
        bench.respond(1, response(64), True)
        request.response.release()
        assert bench.connection.released == [(64, 8)]
        assert bench.statistics.success_count == 1
        assert len(bench.batches) == 0

    def test_before_execute_returns(self, bench):
        """A sender may be faster than execute: its client does not wait for the batch. Inputs may still be read."""
        first, second = bench.post(Request(), Request())
        bench.respond(1, EMPTY, True)
        assert first.response.outputs == []
        assert not first.is_free
        assert second.outcomes == []
        bench.batches.answered(result(1, SENDER, EMPTY))
        assert first.is_free
        assert second.response.outputs == []
        assert bench.statistics.success_count == 2

    def test_what_execute_returns_then_is_dropped(self, bench):
        """The sender was first: a response for the same request is memory to be given back, and no more."""
        request = bench.post()
        bench.respond(1, EMPTY, True)
        bench.batches.answered(result(1, response(64)))
        assert request.response.outputs == []
        assert bench.connection.released == [(64, 8)]
        assert request.is_free

    def test_is_kept_until_the_last(self, bench):
        """The one response is delivered when the model says that it was the last."""
        request = bench.post()
        bench.batches.answered(result(1, SENDER))
        bench.respond(1, response(64), False)
        assert request.outcomes == []
        bench.respond(1, None, True)
        assert len(request.response.outputs) == 1
        assert bench.connection.released == bench.connection.credits == []

    def test_kept_before_execute_returns(self, bench):
        """A response that came before the batch ended is kept in the same way."""
        request = bench.post()
        bench.respond(1, response(64), False)
        bench.batches.answered(result(1, SENDER))
        assert request.is_free
        assert request.outcomes == []
        bench.respond(1, None, True)
        assert request.response.outputs[0].name == "OUT"

    def test_kept_and_then_execute_returns_another(self, bench):
        """The response that execute returned counts, because the stub let it through; the kept one is released."""
        request = bench.post()
        bench.respond(1, response(64), False)
        bench.batches.answered(result(1, response(128)))
        assert request.response.outputs[0].data is not None
        assert bench.connection.released == [(64, 8)]
        request.response.release()
        assert bench.connection.released == [(64, 8), (128, 8)]
        assert len(bench.batches) == 0

    def test_kept_for_who_takes_the_first(self, bench):
        """A gRPC stream gets what was sent first, whatever comes of execute; others get what comes last."""
        failing, returning = bench.post(Request(), Request())
        for serial, request in ((1, failing), (2, returning)):
            request.job.takes_first = True
            bench.respond(serial, response(64 * serial), False)
        bench.batches.answered(failed(1))
        assert bench.connection.released == []
        failing.response.release()
        returning.response.release()
        assert bench.connection.released == [(64, 8), (128, 8)]
        assert (bench.statistics.success_count, bench.statistics.failure_count) == (0, 2)
        again = bench.post()
        again.job.takes_first = True
        bench.respond(3, response(64), False)
        bench.batches.answered(result(3, response(128)))
        assert bench.connection.released[2:] == [(128, 8)]
        again.response.release()
        assert bench.connection.released[3:] == [(64, 8)]

    def test_kept_of_a_stub_that_dies(self, bench):
        """The memory of a response that is kept stays open until its release, although its stub has ended."""
        request = bench.post()
        request.job.takes_first = True
        bench.respond(1, response(64), False)
        region, holder = bench.connection.responses, Mock()
        region.holders.add(holder)
        region.close()  # as the connection does at its end
        bench.batches.died(KILLED, restarts=True)
        assert not holder.revoke.called
        request.response.release()
        holder.revoke.assert_called_once_with(region)
        bench.connection.responses = create_region("responses of a test")

    def test_kept_and_then_execute_fails(self, bench):
        """A batch that fails fails for all that were not answered to the end."""
        kept, done, untouched = bench.post(Request(), Request(), Request())
        bench.respond(1, response(64), False)
        bench.respond(2, EMPTY, True)
        bench.batches.answered(failed(1))
        assert kept.failure.message == untouched.failure.message == "ValueError: no"
        assert done.response.outputs == []
        assert all(request.is_free for request in (kept, done, untouched))
        assert bench.connection.released == [(64, 8)]
        assert (bench.statistics.success_count, bench.statistics.failure_count) == (1, 2)

    def test_ends_without_a_response(self, bench):
        """The client gets an error if the model ended the request without a response."""
        request = bench.post()
        bench.batches.answered(result(1, SENDER))
        bench.respond(1, None, True)
        assert request.failure.message == "the model ended the request without a response"
        assert bench.statistics.failure_count == 1

    def test_error(self, bench):
        """A sender may send an error, at once or with the end behind it."""
        first, second = bench.post(Request(), Request())
        bench.batches.answered(result(1, SENDER, SENDER))
        bench.respond(1, NO, True)
        bench.respond(2, NO, False)
        bench.respond(2, None, True)
        assert (first.failure.message, first.failure.code) == ("no", Code.NOT_FOUND)
        assert second.failure.code == Code.NOT_FOUND
        assert bench.statistics.failure_count == 2

    def test_of_several_batches(self, bench):
        """Requests may be answered in any order, long after their batches."""
        requests = [bench.post() for _ in range(2)]
        bench.batches.answered(result(1, SENDER))
        bench.batches.answered(result(2, SENDER))
        requests.append(bench.post())
        bench.respond(2, EMPTY, True)
        bench.batches.answered(result(3, EMPTY))
        bench.respond(1, EMPTY, True)
        assert all(request.response for request in requests)

    @pytest.mark.parametrize(
        "messages",
        [
            [Respond(1, EMPTY, True)] * 2,
            [Respond(1, EMPTY, False)] * 2,
            [Respond(1, EMPTY, False), Respond(1, EMPTY, True)],
            [Respond(1, None, False)],
            [Respond(2, EMPTY, True)],
            [Respond(0, EMPTY, True)],
            [Respond(-1, EMPTY, True)],
            [Respond(1, NO, False), Respond(1, NO, True)],
            [Respond(1, [], True)],
            [Respond(1, [OK, "", 0, [["OUT", "FP32", [1], 1 << 60, 4, 0, 0]], ""], True)],
        ],
        ids=repr,
    )
    @pytest.mark.parametrize("is_over", [False, True], ids=["in execute", "after execute"])
    def test_nonsense(self, bench, messages, is_over):
        """Responses for unknown or ended requests break the protocol; the remaining requests fail with that reason."""
        request = bench.post()
        if is_over:
            bench.batches.answered(result(1, SENDER))
        *legal, wrong = messages
        for message in legal:
            bench.batches.responded(message)
        with pytest.raises(PeerError):
            bench.batches.responded(wrong)
        bench.batches.died(KILLED, restarts=True)
        assert request.is_over
        assert request.is_free
        assert len(request.outcomes) == 1

    def test_after_the_end(self, bench):
        """A batch that was answered has no senders left, unless it said so."""
        bench.post()
        bench.batches.answered(result(1, EMPTY))
        with pytest.raises(PeerError, match="request 1 is answered and is not open"):
            bench.respond(1, EMPTY, True)

    def test_of_a_batch_that_has_not_begun(self, bench):
        """No sender answers a request that waits behind another batch."""
        running, waiting = bench.post(), bench.post()
        with pytest.raises(PeerError):
            bench.respond(2, EMPTY, True)
        bench.batches.died(KILLED, restarts=True)
        assert running.failure is not None
        assert waiting.outcomes == []
        assert bench.owner.put_backs == [[waiting.job]]


class TestDecoupled:
    def test_any_number(self, decoupled):
        """Responses are delivered as they come, the last one by itself or with a response."""
        bench = decoupled
        first, second = bench.post(Request(), Request())
        bench.respond(1, response(0), False)
        bench.batches.answered(result(1, SENDER, SENDER))
        bench.respond(2, EMPTY, False)
        bench.respond(1, response(64), False)
        bench.respond(2, response(128), True)
        bench.respond(1, None, True)
        assert [type(outcome) for outcome in first.outcomes] == [InferResponse, InferResponse, type(None)]
        assert [type(outcome) for outcome in second.outcomes] == [InferResponse, InferResponse]
        assert first.is_over
        assert second.is_over
        assert bench.statistics.success_count == 2
        assert len(bench.batches) == 0

    def test_none_at_all(self, decoupled):
        """A decoupled model need not respond."""
        request = decoupled.post()
        decoupled.batches.answered(result(1, SENDER))
        decoupled.respond(1, None, True)
        assert request.outcomes == [None]
        assert request.is_over
        assert decoupled.statistics.success_count == 1

    def test_errors_among_them(self, decoupled):
        """An error does not end a request, but it is a failure in the end."""
        request = decoupled.post()
        decoupled.batches.answered(result(1, SENDER))
        decoupled.respond(1, NO, False)
        assert decoupled.connection.credits == [(1, 0)]  # it takes its place in the sender's window
        decoupled.respond(1, EMPTY, False)
        decoupled.respond(1, None, True)
        assert [type(outcome) for outcome in request.outcomes] == [InferenceError, InferResponse, type(None)]
        assert (decoupled.statistics.success_count, decoupled.statistics.failure_count) == (0, 1)
        assert decoupled.statistics.failures[FailureReason.BACKEND] == 1

    def test_statistics_of_responses(self, decoupled):
        """The outcomes of the first responses, of the second ones, and so on."""
        decoupled.post(Request(), Request())
        decoupled.respond(1, EMPTY, False)
        decoupled.batches.answered(result(1, SENDER, SENDER))
        decoupled.respond(2, NO, False)
        decoupled.respond(1, [int(Code.CANCELLED), "no", NO_SLOT, [], ""], False)
        decoupled.respond(1, None, True)
        decoupled.respond(2, EMPTY, True)
        found = {
            index: (each.success_count, each.fail_count, each.empty_count, each.cancel_count)
            for index, each in decoupled.statistics.responses.items()
        }
        assert found == {0: (1, 1, 0, 0), 1: (1, 0, 0, 1), 2: (0, 0, 1, 0)}
        shown = statistics_entry(decoupled.statistics, "m", 1)["response_stats"]
        counts = [[each[name]["count"] for name in ("compute_infer", "compute_output")] for each in shown.values()]
        assert counts == [[2, 2], [1, 1], [1, 0]]

    def test_statistics_of_the_end_alone(self, decoupled):
        """An end without any response is empty."""
        decoupled.post()
        decoupled.respond(1, None, True)
        assert decoupled.statistics.responses[0].empty_count == 1

    def test_statistics_of_a_death(self, decoupled):
        """The error that a client gets in place of the next response counts there."""
        decoupled.post()
        decoupled.respond(1, EMPTY, False)
        decoupled.batches.died(ProcessExit(1), restarts=True)
        assert decoupled.statistics.responses[1].fail_count == 1
        assert decoupled.statistics.failures[FailureReason.BACKEND] == 1

    @pytest.mark.parametrize("before_execute_returns", [True, False])
    def test_the_times_of_a_request_are_those_of_its_execution_and_of_all_its_responses(
        self, decoupled, before_execute_returns
    ):
        request = decoupled.post()
        start_ns = time.monotonic_ns()
        if not before_execute_returns:
            decoupled.batches.answered(Result(1, [SENDER], [], start_ns, start_ns))
        decoupled.respond(1, EMPTY, False)
        decoupled.respond(1, EMPTY, True, start_ns if before_execute_returns else 0)
        found = decoupled.statistics
        parts = found.queue_ns, found.compute_input_ns, found.compute_infer_ns, found.compute_output_ns
        assert min(parts) > 0
        assert sum(parts) == found.success_ns
        assert found.queue_ns + found.compute_input_ns == start_ns - request.job.arrived_ns

    @pytest.mark.parametrize("start_ns", [-1, 0, 1, 1 << 63])
    def test_a_start_that_cannot_be_is_that_of_the_transfer(self, decoupled, start_ns):
        decoupled.post()
        decoupled.respond(1, EMPTY, True, start_ns)
        found = decoupled.statistics
        assert found.compute_input_ns == 0
        assert found.queue_ns + found.compute_infer_ns + found.compute_output_ns == found.success_ns

    def test_queue_time_of_what_waited_behind_another(self, decoupled):
        """A request waits until the one before it is done, though it is with the stub already."""
        decoupled.post()
        decoupled.post()
        sent_ns = time.monotonic_ns()
        decoupled.batches.answered(result(1, SENDER))
        decoupled.respond(1, None, True)
        before_ns = decoupled.statistics.queue_ns
        decoupled.respond(2, EMPTY, False)
        decoupled.respond(2, None, True)
        assert decoupled.statistics.queue_ns - before_ns >= sent_ns - decoupled.requests[1].job.arrived_ns

    def test_what_is_taken(self, decoupled):
        """The sender learns, once, that a response was taken; to release it is to take it."""
        request = decoupled.post()
        decoupled.batches.answered(result(1, SENDER))
        for slot in (0, 64, 128):
            decoupled.respond(1, response(slot), False)
        first, second, third = request.outcomes
        first.take()
        first.take()
        assert decoupled.connection.credits == [(1, 8)]
        first.release()
        assert (decoupled.connection.credits, decoupled.connection.released) == ([(1, 8)], [(0, 8)])
        second.release()
        assert (decoupled.connection.credits, decoupled.connection.released[1:]) == ([(1, 8)] * 2, [(64, 8)])
        decoupled.respond(1, None, True)
        assert decoupled.connection.forgotten == [1]
        third.take()
        third.release()
        assert decoupled.connection.credits == [(1, 8)] * 2
        assert decoupled.connection.released[2:] == [(128, 8)]

    def test_without_memory(self, decoupled):
        """A response that lies nowhere is taken like any other, and gives nothing back."""
        request = decoupled.post()
        decoupled.respond(1, EMPTY, False)
        request.outcomes[0].release()
        assert decoupled.connection.credits == [(1, 0)]
        assert decoupled.connection.released == []

    def test_execute_fails_in_the_middle(self, decoupled):
        """A failure ends the requests that wait for more responses, and not those that have all."""
        first, second, third = decoupled.post(Request(), Request(), Request())
        decoupled.respond(1, EMPTY, False)
        decoupled.respond(2, EMPTY, True)
        decoupled.batches.answered(failed(1))
        assert [type(outcome) for outcome in first.outcomes] == [InferResponse, InferenceError]
        assert second.response.outputs == []
        assert third.failure.message == "ValueError: no"
        assert first.is_over

    @pytest.mark.parametrize("message", [Respond(1, None, False), Respond(9, EMPTY, False)], ids=repr)
    def test_nonsense(self, decoupled, message):
        """A response is one, and of a request that is there."""
        decoupled.post()
        with pytest.raises(PeerError):
            decoupled.batches.responded(message)

    def test_after_the_last(self, decoupled):
        """A response after the last one breaks the protocol."""
        decoupled.post()
        decoupled.respond(1, None, True)
        with pytest.raises(PeerError):
            decoupled.respond(1, EMPTY, False)


class TestStates:
    """The next request of a sequence may read what the last response to this one brings."""

    STATE = "sequence_batching { state { input_name: 'S' output_name: 'T' data_type: TYPE_FP32 dims: 2 } } "

    def stateful(self, slot):
        return [*response(), [slot, [["T", "FP32", [1, 2], slot, 8, 0, 0]]]]

    def request(self, bench):
        request = Request()
        states = SequenceStates(spec_from(CONFIG + self.STATE).sequence_batching.states, "m", no_copies)
        request.job.give_states(states)
        return bench.post(request)

    def test_returned(self, benches):
        """Execute has returned the states with the response: both end the request."""
        bench = benches(self.STATE)
        request = self.request(bench)
        bench.batches.answered(result(1, self.stateful(64)))
        assert request.is_free
        assert [state.size for state in request.job.states.inputs] == [8]
        assert [*request.job.states.inputs[0].memory.regions] == [bench.connection.responses]

    @pytest.mark.parametrize("is_early", [False, True])
    def test_sender(self, benches, is_early):
        """A request that a sender answers ends with the last response, not with execute."""
        bench = benches(self.STATE + DECOUPLED)
        request = self.request(bench)
        if is_early:
            bench.respond(1, self.stateful(64), False)
        bench.batches.answered(result(1, SENDER))
        assert not request.is_free
        bench.respond(1, self.stateful(128), False)
        assert not request.is_free
        bench.respond(1, None, True)
        assert request.is_free
        assert request.job.states.inputs[0].contents % (1 << 36) == 128

    @pytest.mark.parametrize("ends_apart", [False, True])
    def test_sender_ends_within_execute(self, benches, ends_apart):
        """The model reads its inputs until execute has returned, also after the last response."""
        bench = benches(self.STATE + DECOUPLED)
        request = self.request(bench)
        bench.respond(1, self.stateful(64), not ends_apart)
        if ends_apart:
            bench.respond(1, None, True)
        assert request.is_over
        assert not request.is_free
        bench.batches.answered(result(1, SENDER))
        assert request.is_free
        assert request.job.states.inputs[0].contents % (1 << 36) == 64

    def test_death(self, benches):
        """The death of the stub ends it as well."""
        bench = benches(self.STATE + DECOUPLED)
        request = self.request(bench)
        bench.batches.answered(result(1, SENDER))
        bench.batches.died(KILLED, restarts=True)
        assert request.is_free

    def test_kept_while_it_is_executed_again(self, benches):
        """A model may keep the states that a request read, which is executed again with others."""
        bench = benches(self.STATE.replace("{ state", "{ iterative_sequence: true state") + DECOUPLED)
        request = self.request(bench)
        bench.respond(1, self.stateful(64), False)
        bench.batches.answered(result(1, RESCHEDULED))
        request.job.give_states(request.job.states)
        bench.post(request)
        bench.respond(2, self.stateful(128), False)
        bench.batches.answered(result(2, RESCHEDULED, retained=[0]))
        request.job.give_states(request.job.states)
        bench.post(request)
        assert bench.connection.released == []
        bench.batches.retained.retired(Retired([2]))
        assert bench.connection.released == [(64, 8)]


class TestDeath:
    def test_with_open_requests(self, decoupled):
        """A request that waits for a sender fails with the reason of the death."""
        requests = decoupled.post(Request(), Request())
        decoupled.respond(1, response(0), False)
        decoupled.batches.answered(result(1, SENDER, SENDER))
        running, waiting = decoupled.post(), decoupled.post()
        decoupled.batches.died(KILLED, restarts=True)
        assert [type(outcome) for outcome in requests[0].outcomes] == [InferResponse, InferenceError]
        assert "killed by SIGKILL" in requests[1].failure.message
        assert running.failure.message == requests[1].failure.message
        assert waiting.outcomes == []
        assert waiting.job.instance is None
        assert decoupled.owner.put_backs == [[waiting.job]]
        assert all(request.is_free for request in (*requests, running))
        assert not waiting.is_free
        assert len(decoupled.batches) == 0

    def test_failure_that_cancels_others(self, bench):
        """What follows from the failure of a request finds those behind it in the queue, and can cancel them there."""
        running, waiting = bench.post(), bench.post()
        queued = []
        running.job.respond = lambda outcome, final: queued.append(waiting.job.instance is None)
        bench.batches.died(KILLED, restarts=True)
        assert queued == [True]
        assert bench.owner.put_backs == [[waiting.job]]

    def test_without_a_restart(self, bench):
        """Without a restart, waiting requests fail as well."""
        requests = [bench.post(), bench.post()]
        bench.batches.died(KILLED, restarts=False)
        assert all(request.failure and request.is_free for request in requests)
        assert bench.owner.put_backs == []

    def test_of_one_that_was_answered_while_it_ran(self, bench):
        """A request that a sender has answered stays answered; only its memory was still in use."""
        request = bench.post()
        bench.respond(1, EMPTY, True)
        bench.batches.died(KILLED, restarts=True)
        assert request.response.outputs == []
        assert request.is_free

    @pytest.mark.parametrize("is_last", [False, True])
    def test_tells_of_the_end_of_one_that_a_sender_answers(self, decoupled, is_last):
        """Execute has ended for every request that the stub executed, also if a sender has begun to answer it."""
        request = decoupled.post()
        ended = []
        request.job.on_free = ended.append
        decoupled.respond(1, None if is_last else EMPTY, is_last)
        decoupled.batches.died(KILLED, restarts=True)
        assert ended == [request.job]

    def test_with_a_response_that_is_kept(self, bench):
        """A response without the end of its request is dropped."""
        request = bench.post()
        bench.respond(1, response(64), False)
        bench.batches.died(KILLED, restarts=True)
        assert "is not healthy" in request.failure.message
        assert bench.connection.released == [(64, 8)]

    def test_frees_what_the_model_kept(self, bench):
        """A dead model holds nothing."""
        request = bench.post()
        bench.batches.answered(result(1, EMPTY, retained=[0]))
        assert not request.is_free
        bench.batches.died(KILLED, restarts=True)
        assert request.is_free

    def test_takes_nothing_more(self, bench):
        """The batches of a dead stub have no capacity."""
        bench.batches.died(KILLED, restarts=True)
        assert bench.batches.capacity == 0


class TestExpire:
    """Executions that take too long: see test_execution_timer."""

    SENTENCE = "the execution by model 'm' took longer than 50 ms, its EXECUTION_TIMEOUT_MS"

    def test_answers_the_running_batch_and_kills_the_stub(self, bench):
        first, second = bench.post(Request(), Request())
        bench.batches.expire(frozenset({1}), 50)
        for request in (first, second):
            assert (request.failure.message, request.failure.code) == (self.SENTENCE, Code.DEADLINE_EXCEEDED)
        assert bench.connection.kills == ["an execution took longer than 50 ms, its EXECUTION_TIMEOUT_MS"]
        assert bench.batches.has_expired
        assert bench.batches.capacity == 0

    def test_memory_stays_until_the_stub_has_ended(self, bench):
        request = bench.post()
        bench.batches.expire(frozenset({1}), 50)
        assert not request.is_free
        bench.batches.died(KILLED, restarts=True)
        assert request.is_free

    def test_a_batch_behind_it_is_put_back(self, bench):
        bench.post()
        behind = bench.post()
        bench.batches.expire(frozenset({1}), 50)
        bench.batches.died(KILLED, restarts=True)
        assert bench.owner.put_backs == [[behind.job]]
        assert not behind.outcomes

    def test_a_result_that_comes_before_the_end_is_ignored(self, bench):
        """The memory still belongs to the stub."""
        request = bench.post()
        bench.batches.expire(frozenset({1}), 50)
        bench.batches.answered(result(1, response()))
        assert not request.is_free
        assert bench.batches.capacity == 0
        bench.batches.died(KILLED, restarts=True)
        assert request.is_free
        assert request.failure.code is Code.DEADLINE_EXCEEDED

    def test_only_the_batch_that_runs_has_begun(self, bench):
        bench.post()
        bench.post()
        assert [number for number, _ in bench.batches.executions()] == [1]
        bench.batches.answered(result(1, EMPTY))
        assert [number for number, _ in bench.batches.executions()] == [2]
        bench.batches.answered(result(2, EMPTY))
        assert list(bench.batches.executions()) == []

    def test_an_execution_goes_on_until_its_senders_have_answered(self, decoupled):
        request = decoupled.post()
        ((_, begin_ns),) = decoupled.batches.executions()
        decoupled.batches.answered(result(1, SENDER))
        assert list(decoupled.batches.executions()) == [(1, begin_ns)]
        decoupled.respond(1, response(0), False)
        assert list(decoupled.batches.executions()) == [(1, begin_ns)]
        decoupled.respond(1, None, True)
        assert list(decoupled.batches.executions()) == []
        assert request.is_over

    def test_ends_a_stream_behind_its_responses(self, decoupled):
        request, other = decoupled.post(), decoupled.post()
        decoupled.batches.answered(result(1, SENDER))
        decoupled.respond(1, response(0), False)
        decoupled.batches.expire(frozenset({1}), 50)
        assert [type(outcome) for outcome in request.outcomes] == [InferResponse, InferenceError]
        assert request.outcomes[1].code is Code.DEADLINE_EXCEEDED
        decoupled.respond(1, response(8), False)  # was on its way
        assert len(request.outcomes) == 2
        assert not other.outcomes
        decoupled.batches.died(KILLED, restarts=True)
        assert "was lost while it ran this request" in other.failure.message

    def test_a_stream_that_waits_for_its_client_is_no_reason(self, decoupled):
        request = decoupled.post()
        decoupled.batches.answered(result(1, SENDER))
        assert decoupled.batches.last_wait_ns(5) == 0
        for _ in range(RESPONSES_AHEAD_MAX):
            decoupled.respond(1, response(), False)
        assert decoupled.batches.last_wait_ns(5) == 5
        before_ns = time.monotonic_ns()
        for outcome in request.outcomes:
            outcome.take()
        assert before_ns <= decoupled.batches.last_wait_ns(5) <= time.monotonic_ns()

    def test_warming_up_may_take_any_time(self, bench):
        begun = []
        bench.batches.timer = Mock(begin=lambda: begun.append(1))
        bench.connection.is_serving = True
        bench.batches.warm_up([Request().job])
        assert not begun
        bench.batches.open()
        bench.post()
        assert begun

    def test_a_client_that_left_is_counted_as_cancelled(self, bench):
        request = bench.post()
        bench.batches.cancel(request.job)
        bench.batches.expire(frozenset({1}), 50)
        assert bench.statistics.failures[FailureReason.CANCELED] == 1


class TestPutBack:
    def test_goes_back(self, bench):
        """Batches that have not begun wait elsewhere, in their order; their stub gets one at a time from now on."""
        bench.batches.capacity = 3
        running, first, second = bench.post(), bench.post(Request(), Request()), bench.post()
        bench.batches.put_back(Requeue([2, 4]))
        assert bench.owner.put_backs == [[second.job], [each.job for each in first]]
        assert all(each.job.instance is None for each in (*first, second))
        assert running.job.instance is bench.batches
        assert bench.batches.capacity == 0
        assert len(bench.batches) == 1
        bench.batches.answered(result(1, EMPTY))
        assert bench.batches.capacity == 1

    def test_runs_again(self, bench):
        """A request that was put back can be executed again, under another number."""
        bench.post()
        waiting = bench.post()
        bench.batches.put_back(Requeue([2]))
        bench.batches.answered(result(1, EMPTY))
        bench.batches.execute([waiting.job])
        assert waiting.job.serial == 3
        bench.batches.answered(result(3, EMPTY))
        assert waiting.response.outputs == []
        assert waiting.is_free

    @pytest.mark.parametrize("numbers", [[2, 2], [3], [0], [None], ["2"], [[2]], [2.0], [True], [{}]], ids=repr)
    def test_nonsense(self, bench, numbers):
        """Only posted batches can be put back, and a wrong message loses no request."""
        running, waiting = bench.post(), bench.post()
        with pytest.raises(PeerError):
            bench.batches.put_back(Requeue(numbers))
        bench.batches.died(KILLED, restarts=True)
        assert running.failure is not None
        assert [job for batch in bench.owner.put_backs for job in batch] == [waiting.job]

    @pytest.mark.parametrize("final", [False, True])
    def test_of_what_has_begun(self, bench, final):
        """A batch of which a request was answered has begun."""
        begun = bench.post(Request(), Request())
        bench.respond(1, response(64), final)
        with pytest.raises(PeerError):
            bench.batches.put_back(Requeue([1]))
        bench.batches.died(KILLED, restarts=True)
        assert bench.owner.put_backs == []
        assert all(request.is_over and request.is_free and len(request.outcomes) == 1 for request in begun)

    def test_of_one_that_nobody_waits_for(self, bench):
        """The flag of a cancelled request is cleared when the request goes back."""
        bench.post()
        waiting = bench.post()
        bench.batches.cancel(waiting.job)
        assert bench.connection.flags == {2}
        bench.batches.put_back(Requeue([2]))
        assert bench.connection.flags == set()

    def test_while_it_stops(self, bench):
        """A stub that stops gets no further batches, even if it puts some back; without batches it is idle."""
        idle = []
        running, waiting = bench.post(), bench.post()
        bench.batches.close(lambda: idle.append(1))
        bench.batches.put_back(Requeue([2]))
        assert bench.batches.capacity == 0
        assert idle == []
        bench.batches.answered(result(1, EMPTY))
        assert idle == [1]
        assert running.is_over
        assert bench.owner.put_backs == [[waiting.job]]


class TestReschedule:
    def test_goes_to_the_end(self, benches):
        """The model wants to see the request again, though not as the beginning of a sequence."""
        bench = benches(ITERATIVE)
        request = bench.post(Request(flags=3))
        bench.batches.answered(result(1, RESCHEDULED))
        assert bench.owner.rescheduled == [request.job]
        assert request.job.instance is None
        assert request.job.options.flags == 2
        assert not request.is_free
        assert request.outcomes == []
        bench.batches.execute([request.job])
        bench.batches.answered(result(2, EMPTY))
        assert request.response.outputs == []
        assert request.is_free
        assert bench.statistics.success_count == 1
        assert bench.statistics.execution_count == 2

    def test_of_a_model_that_is_not_to(self, bench):
        """Triton's words, exactly."""
        request = bench.post()
        bench.batches.answered(result(1, RESCHEDULED))
        assert (request.failure.message, request.failure.code) == (NOT_RESCHEDULABLE, Code.INVALID_ARG)
        assert request.is_free
        assert bench.owner.rescheduled == []

    @pytest.mark.parametrize("retires_first", [False, True])
    def test_while_the_model_keeps_an_input(self, benches, retires_first):
        """Memory that the model kept and that the request needs again is free when neither needs it."""
        bench = benches(ITERATIVE)
        request = bench.post()
        bench.batches.answered(result(1, RESCHEDULED, retained=[0]))
        if retires_first:
            bench.batches.retained.retired(Retired([1]))
        bench.batches.execute([request.job])
        bench.batches.answered(result(2, EMPTY))
        if not retires_first:
            assert not request.is_free
            bench.batches.retained.retired(Retired([1]))
        assert request.is_free
        assert request.response.outputs == []

    def test_kept_again_and_again(self, benches):
        """A request that is retained in each execution is free when all of them are retired and it is answered."""
        bench = benches(ITERATIVE)
        request = bench.post()
        for serial in range(1, 6):
            bench.batches.answered(result(serial, RESCHEDULED, retained=[0]))
            bench.batches.execute([request.job])
        bench.batches.retained.retired(Retired([4, 2, 1, 5, 3]))
        assert not request.is_free
        bench.batches.answered(result(6, EMPTY))
        assert request.is_free

    def test_kept_when_the_stub_dies(self, benches):
        """A request that queues again goes on without the stub that kept its input."""
        bench = benches(ITERATIVE)
        request = bench.post()
        bench.batches.answered(result(1, RESCHEDULED, retained=[0]))
        bench.batches.died(KILLED, restarts=True)
        assert not request.is_free
        request.job.free()
        assert request.is_free

    def test_of_one_that_a_sender_has_answered(self, benches):
        """A request that was answered completely is not executed again."""
        bench = benches(ITERATIVE)
        request = bench.post()
        bench.respond(1, EMPTY, True)
        bench.batches.answered(result(1, RESCHEDULED))
        assert request.response.outputs == []
        assert bench.owner.rescheduled == []
        assert request.is_free

    def test_of_one_that_a_sender_answers(self, benches):
        """A request that has a response already is not rescheduled."""
        bench = benches(ITERATIVE)
        request = bench.post()
        bench.respond(1, response(64), False)
        bench.batches.answered(result(1, RESCHEDULED))
        assert request.failure.message == NOT_RESCHEDULABLE
        assert bench.connection.released == [(64, 8)]
        assert bench.owner.rescheduled == []
        assert request.is_free


class TestCancel:
    def test_flag_while_it_runs(self, bench):
        """The model sees the cancellation; it answers all the same, and then the flag is free again."""
        request = bench.post()
        bench.batches.cancel(request.job)
        assert bench.connection.flags == {1}
        assert request.outcomes == []
        bench.batches.answered(result(1, EMPTY))
        assert bench.connection.flags == set()
        assert request.response.outputs == []

    @pytest.mark.parametrize("answer", [NO, SENDER, RESCHEDULED], ids=repr)
    def test_flag_goes_with_the_request(self, benches, answer):
        """However a request ends, its flag does not outlive it."""
        bench = benches(ITERATIVE)
        request = bench.post()
        bench.batches.cancel(request.job)
        bench.batches.answered(result(1, answer))
        assert bench.connection.flags == ({1} if answer is SENDER else set())
        if answer is SENDER:
            bench.respond(1, EMPTY, True)
            assert bench.connection.flags == set()

    def test_flag_of_a_batch_that_fails(self, bench):
        """The flag is cleared if the batch fails as a whole, with or without a sender."""
        requests = bench.post(Request(), Request())
        bench.respond(1, EMPTY, False)
        for request in requests:
            bench.batches.cancel(request.job)
        bench.batches.answered(failed(1))
        assert bench.connection.flags == set()

    def test_flag_of_one_that_is_answered_early(self, bench):
        """The flag is cleared if a sender answers while execute runs."""
        request = bench.post()
        bench.batches.cancel(request.job)
        bench.respond(1, EMPTY, True)
        assert bench.connection.flags == set()
        bench.batches.answered(result(1, SENDER))
        assert bench.connection.flags == set()

    def test_is_too_late(self, bench):
        """A request that was answered cannot be cancelled: its flag would be that of another request."""
        done, early = bench.post(Request(), Request())
        bench.respond(2, EMPTY, True)
        bench.batches.cancel(early.job)
        assert bench.connection.flags == set()
        bench.batches.answered(result(1, EMPTY, SENDER))
        bench.batches.cancel(done.job)
        assert bench.connection.flags == set()

    def test_twice(self, bench):
        """To cancel again changes nothing."""
        request = bench.post()
        bench.batches.cancel(request.job)
        bench.batches.cancel(request.job)
        assert bench.calls.cancelled == [1]

    def test_of_a_whole_batch(self, bench):
        """When all requests of a batch are cancelled, the calls of the batch are cancelled, too."""
        bench.post()
        first, second = bench.post(Request(), Request())
        bench.batches.cancel(second.job)
        assert bench.calls.cancelled == []
        bench.batches.cancel(first.job)
        assert bench.calls.cancelled == [2]

    def run_to(self, bench, serial):
        """Have everything in front of this serial executed and answered."""
        while bench.batches._serial < serial:
            batch = bench.batches._serial
            count = min(500, serial - batch)
            bench.batches.execute([Request().job for _ in range(count)])
            bench.batches.answered(result(batch, *[EMPTY] * count))

    def test_of_one_that_shares_its_flag(self, decoupled):
        """A request that shares its flag is not cancelled, because that would cancel the other request, too."""
        old = decoupled.post()
        decoupled.batches.answered(result(1, SENDER))
        self.run_to(decoupled, 1 + FLAGS_BYTES)
        new = decoupled.post()
        assert new.job.serial % FLAGS_BYTES == old.job.serial
        decoupled.batches.cancel(old.job)
        assert decoupled.connection.flags == set()
        assert old.job.cancelled

    def test_of_one_whose_flag_another_comes_to_share(self, decoupled):
        """A later request with the same flag clears it."""
        old = decoupled.post()
        decoupled.batches.answered(result(1, SENDER))
        decoupled.batches.cancel(old.job)
        assert decoupled.connection.flags == {1}
        self.run_to(decoupled, 1 + FLAGS_BYTES)
        assert decoupled.connection.flags == {1}
        decoupled.post()
        assert decoupled.connection.flags == set()

    def test_of_the_one_that_is_left(self, decoupled):
        """Of two requests with the same flag, the one that is left can be cancelled."""
        old = decoupled.post()
        decoupled.batches.answered(result(1, SENDER))
        self.run_to(decoupled, 1 + FLAGS_BYTES)
        new = decoupled.post()
        decoupled.respond(old.job.serial, None, True)
        decoupled.batches.cancel(new.job)
        assert decoupled.connection.flags == {1}


class TestConcurrency:
    def test_places(self, benches):
        """A stub with several threads has a place for each, and no more."""
        bench = benches(concurrency=3)
        assert bench.batches.capacity == 3
        for _ in range(3):
            bench.post()
        assert bench.batches.capacity == 0
        bench.batches.answered(result(2, EMPTY))
        assert bench.batches.capacity == 1

    def test_in_any_order(self, benches):
        """Batches end in any order."""
        bench = benches(concurrency=3)
        requests = [bench.post() for _ in range(3)]
        for number in (3, 1, 2):
            bench.respond(number, EMPTY, True)
            bench.batches.answered(result(number, SENDER))
        assert all(request.response and request.is_free for request in requests)

    def test_in_order_without(self, bench):
        """One thread answers in order."""
        bench.post()
        bench.post()
        with pytest.raises(PeerError, match="batch 2 is answered and is not the one that is due"):
            bench.batches.answered(result(2, EMPTY))

    def test_death(self, benches):
        """All of them were running, so all of them fail."""
        bench = benches(concurrency=2)
        requests = [bench.post(), bench.post()]
        bench.batches.died(KILLED, restarts=True)
        assert all(request.failure and request.is_free for request in requests)
        assert bench.owner.put_backs == []


class TestWaiting:
    """Requests that the stub has and has not begun."""

    def test_behind_the_one_that_runs(self, bench):
        """All requests of the batches behind the first one."""
        assert bench.batches.waiting == 0
        bench.post(Request(), Request())
        assert bench.batches.waiting == 0
        bench.post(Request(), Request(), Request())
        assert bench.batches.waiting == 3
        bench.batches.answered(result(1, EMPTY, EMPTY))
        assert bench.batches.waiting == 0

    def test_behind_as_many_as_there_are_threads(self, benches):
        """A stub with several threads has as many that run."""
        bench = benches(concurrency=2)
        bench.post()
        bench.post()
        assert bench.batches.waiting == 0


class TestPlaces:
    def test_of_a_model_that_calls_others(self, bench):
        """A stub that makes calls has capacity 1, so that requests wait where another instance can take them."""
        assert bench.batches.capacity == CAPACITY_MIN
        bench.batches.expect_calls()
        assert bench.batches.capacity == 1
        bench.post()
        bench.batches.expect_calls()
        assert bench.batches.capacity == 0
        bench.batches.answered(result(1, EMPTY))
        assert bench.batches.capacity == 1

    def test_of_a_model_that_batches(self, benches):
        """With a batcher, requests wait in the queue, where they can still join a larger batch."""
        assert benches("dynamic_batching { }").batches.capacity == 1


class TestClose:
    def test_is_idle_at_once(self, bench):
        """Without anything under way there is nothing to wait for."""
        idle = []
        bench.batches.close(lambda: idle.append(1))
        assert idle == [1]
        assert bench.batches.capacity == 0

    def test_waits_for_senders(self, decoupled):
        """Every request is answered first, and nothing is given to the stub meanwhile."""
        idle = []
        decoupled.post()
        decoupled.batches.close(lambda: idle.append(1))
        decoupled.batches.answered(result(1, SENDER))
        assert decoupled.batches.capacity == 0
        decoupled.respond(1, EMPTY, False)
        assert idle == []
        decoupled.respond(1, None, True)
        assert idle == [1]

    def test_ends_with_the_stub(self, decoupled):
        """A death is the end of waiting, too."""
        idle = []
        decoupled.post()
        decoupled.batches.close(lambda: idle.append(1))
        decoupled.batches.died(KILLED, restarts=False)
        assert idle == [1]

    def test_is_told_once(self, bench):
        """`close` calls back once."""
        idle = []
        bench.batches.close(lambda: idle.append(1))
        bench.batches.died(KILLED, restarts=False)
        assert idle == [1]


class TestRetained:
    def test_by_a_failure(self, bench):
        """A batch that failed may have been kept as well."""
        requests = bench.post(Request(), Request())
        bench.batches.answered(failed(1, retained=[1]))
        assert [request.is_free for request in requests] == [True, False]
        bench.batches.retained.retired(Retired([2]))
        assert requests[1].is_free

    def test_of_one_that_a_sender_answers(self, bench):
        """Retained inputs stay, also if a sender answers the request."""
        early, late = bench.post(Request(), Request())
        bench.respond(1, EMPTY, True)
        bench.batches.answered(result(1, SENDER, SENDER, retained=[0, 1]))
        assert not early.is_free
        assert not late.is_free
        bench.respond(2, EMPTY, True)
        bench.batches.retained.retired(Retired([1, 2]))
        assert early.is_free
        assert late.is_free

    def test_bad_index_among_good_ones(self, bench):
        """The valid part of a bad answer is not lost."""
        requests = bench.post(Request(), Request())
        with pytest.raises(PeerError):
            bench.batches.answered(result(1, EMPTY, EMPTY, retained=[0, 7]))
        bench.batches.died(KILLED, restarts=True)
        assert all(request.failure and request.is_free for request in requests)


WIRES = st.sampled_from([None, EMPTY, response(0), response(64), NO, []])
ELEMENTS = st.lists(st.sampled_from([SENDER, RESCHEDULED, EMPTY, response(0), NO, "text"]), min_size=3, max_size=3)
NUMBERS = st.integers(0, 7)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("post"), st.integers(1, 3)),
        st.tuples(st.just("cancel"), NUMBERS),
        st.tuples(st.just("respond"), NUMBERS, WIRES, st.booleans()),
        st.tuples(st.just("result"), NUMBERS, ELEMENTS, st.sets(st.integers(0, 3))),
        st.tuples(st.just("failed"), NUMBERS, st.sets(st.integers(0, 2))),
        st.tuples(st.just("put back"), NUMBERS),
        st.tuples(st.just("retired"), NUMBERS),
    ),
    max_size=20,
)


class TestWhateverAStubSays:
    def play(self, bench, step):
        """Play one step. Its number says which request, or which batch with the stub, it is about."""
        kind, number, *what = step
        batches = bench.batches
        request = bench.requests[number % len(bench.requests)] if bench.requests else Request()
        posted = list(batches._inflight)
        batch = posted[number % len(posted)] if posted else number
        count = len(batches._inflight[batch].batch) if posted else number
        if kind == "post" and batches.capacity > 0:
            bench.post(*[Request() for _ in range(number)])
        elif kind == "cancel" and request.job.instance is not None:
            batches.cancel(request.job)
        elif kind == "respond":
            batches.responded(Respond(request.job.serial, *what))
        elif kind == "result":
            elements, retained = what
            batches.answered(Result(batch, elements[:count], sorted(retained), 0, 0))
        elif kind == "failed":
            batches.answered(Failed(batch, "no", sorted(what[0]), 0, 0))
        elif kind == "put back":
            batches.put_back(Requeue([batch]))
        elif kind == "retired":
            batches.retained.retired(Retired([request.job.serial]))

    def check(self, bench, steps):
        """Play these steps until the stub is killed for one of them, or dies; then nothing may be lost."""
        batches, owner = bench.batches, bench.owner
        for step in steps:
            try:
                self.play(bench, step)
            except PeerError:
                break
        batches.died(KILLED, restarts=True)
        queued = [job for batch in owner.put_backs for job in batch] + owner.rescheduled
        assert len({id(job) for job in queued}) == len(queued)
        for request in bench.requests:
            if request.job in queued:
                assert request.outcomes == []
                assert request.job.instance is None
                request.job.free()
            else:
                assert request.is_over
            assert request.is_free
        assert len(batches) == batches.capacity == 0

    @pytest.mark.parametrize("concurrency", [1, 3])
    @pytest.mark.parametrize("text", ["", DECOUPLED, ITERATIVE], ids=["plain", "decoupled", "iterative"])
    @given(steps=STEPS)
    def test_nothing_is_lost(self, text, concurrency, steps):
        """Each request is answered to the end once, or queues again; its memory is free once."""
        with contextlib.closing(Bench(text, concurrency)) as bench:
            self.check(bench, steps)

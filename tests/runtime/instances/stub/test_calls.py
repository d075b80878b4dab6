# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls from one model to another, over a real connection without a process: the test is the stub that makes them.

First between that stub and a callee of straw, of which the test decides when it answers and when it is done with the
inputs; at the end between two stubs, with everything that lies between them.
"""

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.calls import model_call
from pyruntime.runtime.calls.call_request import ValidatedSignatures
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.instances.output_findings import OutputFindings
from pyruntime.runtime.instances.stub import calls as calls_module
from pyruntime.runtime.instances.stub.batches import StubBatches
from pyruntime.runtime.instances.stub.calls import Calls
from pyruntime.runtime.instances.stub.instance_spec import StubInstanceSpec
from pyruntime.runtime.instances.stub.supervisor import ProcessExit
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.statistics import ModelStatistics
from pyruntime.runtime.regions import create_region
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.addresses import address
from pyruntime.utils.channel import FRAME_BYTES_MAX, State
from pyruntime.utils.errors import Code, InferenceError, PeerError
from pyruntime.utils.messages import (
    INLINE_BYTES_MAX,
    NO_SLOT,
    OK,
    SENDER,
    Answer,
    Call,
    CancelCall,
    Consumed,
    Credit,
    Failed,
    LoadFailed,
    Log,
    Release,
    ReleaseHold,
    Requeue,
    Respond,
    Result,
    Retired,
    Stopped,
    Unmap,
    Unread,
)

from ...model_specs import spec_from
from .far_end import Stub

CONFIG = (
    "max_batch_size: 8 input { name: 'IN' data_type: TYPE_FP32 dims: 2 } "
    "output { name: 'OUT' data_type: TYPE_FP32 dims: 2 } "
)
DECOUPLED = "model_transaction_policy { decoupled: true }"
KILLED = ProcessExit(-9)
PREFIX = "Model other - Error when running inference: "
IS_DECOUPLED = (
    "Model other - Error when running inference: Model other is using the decoupled. The current BLS request call "
    "doesn't support models using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' "
    "or 'async_exec' calls for decoupled models.'"
)


def spec_of(name, text=""):
    return spec_from(f"name: '{name}' {CONFIG} {text}", name)


def tensor(at=0, size=8):
    return ["IN", "FP32", [1, size // 8, 2][-2:], at, size, 0, 0]


def wire(*tensors, outputs=None, trace=""):
    return ["7", 0, 0, 0, outputs, "", list(tensors), trace, None]


INLINE = ["IN", "FP32", [1, 2], bytes(8), 8, 0, 0]
TWO_INPUTS = "input { name: 'TWO' data_type: TYPE_FP32 dims: 2 } input { name: 'THREE' data_type: TYPE_FP32 dims: 2 }"
# Of a response that is not sent along, but held.
SIZE = INLINE_BYTES_MAX + 4


def is_open(region):
    return region.fileno() >= 0


class Instance:
    """One that could serve a call."""

    def __init__(self, name="other", waits_for=()):
        self.model_name = name
        self.waits_for = waits_for

    def worker_of(self, job):
        return self

    def waiting_calls(self):
        return self.waits_for

    def cancel(self, job):
        raise AssertionError("the model is told, and not the instance")


class Callee:
    """A model of straw. `jobs` are those that it has begun with; while `is_busy` they queue."""

    is_limited = False

    def __init__(self, text=""):
        self.spec = spec_of("other", text)
        self.memory = None
        self.validated = ValidatedSignatures()
        self.workers = [Instance()]
        self.jobs = []
        self.cancelled = []
        self.is_busy = False
        self.queue_is_full = False

    def start(self, job):
        if self.queue_is_full:
            job.free()
            raise InferenceError("Exceeds maximum queue size", Code.UNAVAILABLE)
        self.jobs.append(job)
        if not self.is_busy:
            job.instance = self.workers[0]

    def cancel(self, job):
        self.cancelled.append(job)
        if job.instance is None:
            job.free()
            job.respond(InferenceError("", Code.CANCELLED), True)


class Server:
    """Has one model, `other`, and the models that a test adds."""

    def __init__(self):
        self.models = {}
        self.waiting = []
        self.waits_ended = []

    def find(self, name, version):
        if name not in self.models:
            raise InferenceError("Request for unknown model", Code.NOT_FOUND)
        return self.models[name]

    def when_ready(self, name, version, caller, call_back):
        self.waiting.append((name, version, caller, call_back))
        return lambda: self.waits_ended.append(name)


def instance_spec(name, spec, memory, statistics, server):
    findings = OutputFindings(spec, "model.py")
    return StubInstanceSpec(name, spec, 1, {}, {}, memory, 1 << 20, statistics, server, findings)


class Bench:
    """A stub that makes calls, the callee, and a region in which the callee's responses lie."""

    def __init__(self, text="", state=State.SERVING):
        self.requests = create_region("requests of the caller")
        self.outputs = create_region("responses of the callee")
        self.stub = Stub("m_0", self.requests, state)
        self.connection = self.stub.connection
        self.callee = Callee(text)
        self.server = Server()
        self.server.models["other"] = self.callee
        self.caller = Instance("m")
        plan = instance_spec("m_0", spec_of("m"), None, ModelStatistics(), self.server)
        self.calls = Calls(plan, self.connection, asyncio.TaskGroup())
        self.released = []

    def call(self, *tensors, number=1, decoupled=False, waiting=0, model="other"):
        self.calls.call(Call(number, model, -1, wire(*(tensors or (tensor(),))), decoupled, waiting))
        return self.callee.jobs[-1] if self.callee.jobs else None

    def response(self, slot=64, size=SIZE):
        """A response of the callee."""
        outputs = [OutputTensor("OUT", "UINT8", [size], b"x" * size, address(self.outputs.number, slot))]
        return InferResponse(
            "other", 1, "7", outputs, {}, lambda: self.released.append(slot), lambda: self.taken.append(slot),
            (self.outputs,),
        )  # fmt: skip

    def close(self):
        self.stub.close()
        for region in (self.requests, self.outputs):
            if is_open(region):
                region.close()


@pytest.fixture
def benches():
    made = []

    def make(*args, **kwargs):
        made.append(Bench(*args, **kwargs))
        made[-1].taken = []
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(benches):
    return benches()


def answer(slot, hold=1, number=1, final=True, region=None):
    """The message for the caller about a response in this slot."""
    return Answer(
        number, [OK, "", hold, [["OUT", "UINT8", [SIZE], address(region.number, slot), SIZE, 0, 0]], ""], final
    )


class TestRequest:
    def test_where_its_inputs_lie(self, bench):
        """Inputs stay where they are, under numbers that all know, in regions that the callee's stub can be given."""
        own = bench.connection.responses
        bench.call(tensor(64))
        bench.call(tensor(address(bench.requests.number, 4096)), number=2)
        first, second = bench.callee.jobs
        assert first.tensors == [("IN", "FP32", [1, 2], address(own.number, 64), 8, 0, 0)]
        assert first.regions == [own]
        assert second.tensors == [("IN", "FP32", [1, 2], address(bench.requests.number, 4096), 8, 0, 0)]
        assert second.regions == [bench.requests]

    def test_whose_inputs_come_along(self, bench):
        """Small inputs are in the message, without memory that must be released."""
        bench.call(INLINE)
        assert bench.callee.jobs[0].tensors == [tuple(INLINE)]
        assert bench.callee.jobs[0].regions == []
        bench.callee.jobs[0].free()
        bench.callee.jobs[0].respond(None, True)
        assert bench.stub.hear() == [Answer(1, None, True)]

    @pytest.mark.parametrize("outputs", [[], ["OUT"], None])
    def test_outputs(self, bench, outputs):
        """It may want some of the outputs, all of them, or none at all."""
        bench.calls.call(Call(1, "other", -1, wire(INLINE, outputs=outputs), False, 0))
        assert bench.callee.jobs[0].options.requested_outputs == outputs

    def test_of_a_response_that_is_passed_on(self, bench):
        """The output of another model, which the caller was granted, can be the input of a call."""
        bench.call().respond(bench.response(), True)
        assert bench.stub.granted() == [bench.outputs.number]
        bench.call(tensor(address(bench.outputs.number, 64)), number=2)
        assert bench.callee.jobs[1].regions == [bench.outputs]

    def test_of_no_such_model(self, bench):
        """The model that calls reads why its call failed, and its inputs are its own again."""
        bench.call(model="absent")
        assert bench.stub.hear() == [
            Unread([1]),
            Answer(1, [Code.INTERNAL, "Model absent - Error when running inference: Failed for execute the inference "
                       "request. Model 'absent' is not ready.", NO_SLOT, [], ""], True),
        ]  # fmt: skip
        assert len(bench.calls) == 0

    def test_of_a_decoupled_model(self, benches):
        """Triton's words, exactly, for a call that takes one response only."""
        bench = benches(DECOUPLED)
        bench.call()
        assert bench.stub.hear() == [Unread([1]), Answer(1, [Code.INTERNAL, IS_DECOUPLED, NO_SLOT, [], ""], True)]
        bench.call(number=2, decoupled=True)
        assert len(bench.callee.jobs) == 1

    @pytest.mark.parametrize("by", ["configuration", "queue"])
    def test_that_is_refused(self, bench, by):
        """A refused call is answered, its inputs are unread, and their region is not held any more."""
        bench.callee.queue_is_full = True
        bench.call(tensor() if by == "queue" else ["IN", "FP32", [1, 3], 0, 12, 0, 0])
        unread, refused = bench.stub.hear()
        assert unread == Unread([1])
        assert (refused.call, refused.final, refused.response[2:]) == (1, True, [NO_SLOT, [], ""])
        assert refused.response[0] == (Code.UNAVAILABLE if by == "queue" else Code.INVALID_ARG)
        assert refused.response[1]
        assert len(bench.calls) == 0
        bench.stub.exit()
        assert not is_open(bench.connection.responses)

    def test_from_initialize(self, benches):
        """A model that calls while it loads waits for the other one, if that is still to come."""
        bench = benches(state=State.LOADING)
        bench.call()
        ((name, version, caller, call_back),) = bench.server.waiting
        assert (name, version, caller) == ("other", -1, "m")
        assert bench.callee.jobs == []
        call_back(bench.callee)
        bench.callee.jobs[0].respond(bench.response(), True)
        assert bench.stub.hear() == [answer(64, region=bench.outputs)]

    def test_from_initialize_in_vain(self, benches):
        """If it does not come, the model reads why."""
        bench = benches(state=State.LOADING)
        bench.call()
        bench.server.waiting[0][-1](InferenceError("it cannot be loaded"))
        assert bench.stub.hear() == [
            Unread([1]), Answer(1, [Code.INTERNAL, PREFIX + "it cannot be loaded", NO_SLOT, [], ""], True),
        ]  # fmt: skip

    def test_from_initialize_and_cancelled(self, benches):
        """A call that was cancelled while it waited is not started."""
        bench = benches(state=State.LOADING)
        bench.call()
        bench.calls.cancel(CancelCall(1))
        assert bench.stub.hear() == []
        bench.server.waiting[0][-1](bench.callee)
        assert bench.callee.jobs == []
        assert bench.stub.hear() == [Unread([1]), Answer(1, [Code.CANCELLED, "", NO_SLOT, [], ""], True)]

    @pytest.mark.parametrize(
        "request_",
        [
            wire(["IN", "FP32", [1.5, 2], bytes(8), 8, 0, 0]),
            wire([[], "FP32", [1, 2], bytes(8), 8]),
            wire(INLINE, outputs=[[]]),
            wire(INLINE, trace=1),
            ["7", 0, 0, 0, None, "{", [], "", None],
        ],
        ids=repr,
    )
    def test_nonsense_from_initialize(self, benches, request_):
        """A stub that breaks the protocol while it loads is noticed at once, before its call waits."""
        bench = benches(state=State.LOADING)
        with pytest.raises(PeerError):
            bench.calls.call(Call(1, "other", -1, request_, False, 0))
        assert bench.server.waiting == []

    def test_from_an_initialize_that_died(self, benches):
        """A dead stub's call ends its wait and holds no memory, even if the wait ends later."""
        bench = benches(state=State.LOADING)
        bench.call()
        bench.calls.died()
        assert bench.server.waits_ended == ["other"]
        bench.stub.exit()
        assert not is_open(bench.connection.responses)
        bench.server.waiting[0][-1](bench.callee)
        assert bench.callee.jobs == []
        assert len(bench.calls) == 0


class TestInputs:
    def test_read_until_the_end(self, bench):
        """When the callee is done with the inputs before it answers, the answer says so too."""
        job = bench.call()
        job.free()
        assert bench.stub.hear() == []
        job.respond(bench.response(), True)
        assert bench.stub.hear() == [Unread([1]), answer(64, region=bench.outputs)]

    def test_kept_beyond_the_answer(self, bench):
        """If the callee releases the inputs after the response, the caller gets the message then."""
        job = bench.call()
        job.respond(bench.response(), True)
        assert bench.stub.hear() == [answer(64, region=bench.outputs)]
        job.free()
        assert bench.stub.hear() == [Unread([1])]
        job.free()
        assert bench.stub.hear() == []

    def test_in_the_middle_of_many_responses(self, benches):
        """Inputs that are read no more go with the last response, or with another call's."""
        bench = benches(DECOUPLED)
        first, second = bench.call(decoupled=True), bench.call(number=2, decoupled=True)
        first.free()
        first.respond(bench.response(), False)
        assert bench.stub.hear() == [answer(64, final=False, region=bench.outputs)]
        second.respond(None, True)
        assert bench.stub.hear() == [Unread([1]), Answer(2, None, True)]
        first.respond(None, True)
        assert bench.stub.hear() == [Answer(1, None, True)]

    def test_in_a_region_that_its_maker_has_closed(self, bench):
        """Inputs that the callee still reads stay, though the caller is gone."""
        job = bench.call(tensor(64))
        own = bench.connection.responses
        bench.calls.died()
        bench.stub.exit()
        assert is_open(own)
        job.free()
        assert not is_open(own)

    def test_in_several_regions(self, benches):
        """Each region is counted on once for each call, however many inputs lie in it."""
        bench = benches(TWO_INPUTS)
        own = bench.connection.responses
        tensors = [tensor(0), tensor(64), tensor(address(bench.requests.number, 0))]
        tensors[1][0], tensors[2][0] = "TWO", "THREE"
        jobs = [bench.call(*tensors, number=number) for number in (1, 2)]
        bench.calls.died()
        bench.stub.exit()
        bench.requests.close()
        jobs[0].free()
        assert is_open(own)
        assert is_open(bench.requests)
        jobs[1].free()
        assert not is_open(own)
        assert not is_open(bench.requests)


class TestResponses:
    def test_held_until_dropped(self, bench):
        """A response stays in the callee's memory, which the caller can map, until the caller lets go of it."""
        bench.call().respond(bench.response(), True)
        assert bench.stub.hear() == [answer(64, region=bench.outputs)]
        assert bench.stub.granted() == [bench.outputs.number]
        assert bench.released == []
        bench.outputs.close()  # the callee's stub has died
        assert is_open(bench.outputs)
        bench.calls.drop(ReleaseHold([1]))
        assert bench.released == [64]
        assert not is_open(bench.outputs)
        assert bench.stub.hear() == [Unmap([bench.outputs.number])]

    def test_each_has_a_hold(self, bench):
        """Holds are numbered, and dropped in any order."""
        for number in (1, 2, 3):
            bench.call(number=number).respond(bench.response(64 * number), True)
        assert [message.response[2] for message in bench.stub.hear()] == [1, 2, 3]
        bench.calls.drop(ReleaseHold([3, 1]))
        assert bench.released == [192, 64]
        bench.calls.drop(ReleaseHold([2]))
        assert bench.released == [192, 64, 128]
        assert bench.stub.granted() == [bench.outputs.number]

    @pytest.mark.parametrize("size", [0, 1, INLINE_BYTES_MAX])
    def test_that_comes_along(self, bench, size):
        """A small response is in the message: it is not held, and given back at once."""
        bench.call().respond(bench.response(size=size), True)
        wire = [OK, "", NO_SLOT, [["OUT", "UINT8", [size], b"x" * size, size, 0, 0]], ""]
        assert bench.stub.hear() == [Answer(1, wire, True)]
        assert bench.released == [64]
        assert bench.stub.granted() == []
        bench.outputs.close()
        assert not is_open(bench.outputs)

    def test_that_comes_along_only_if_all_of_it_is_small(self, bench):
        """It is the size of all outputs that counts."""
        response = bench.response(size=INLINE_BYTES_MAX)
        response.outputs.append(OutputTensor("TWO", "UINT8", [1], b"x", address(bench.outputs.number, 0)))
        bench.call().respond(response, True)
        (message,) = bench.stub.hear()
        assert message.response[2] == 1
        assert [type(each[3]) for each in message.response[3]] == [int, int]

    def test_error(self, bench):
        """An error is an answer."""
        bench.call().respond(InferenceError("no", Code.NOT_FOUND), True)
        assert bench.stub.hear() == [Answer(1, [Code.NOT_FOUND, "no", NO_SLOT, [], ""], True)]

    def test_many(self, benches):
        """A decoupled model answers as often as it likes; a response is taken when the caller says so."""
        bench = benches(DECOUPLED)
        job = bench.call(decoupled=True)
        for slot in (64, 128, 192):
            job.respond(bench.response(slot), False)
        assert bench.taken == []
        bench.calls.took(Consumed([[1, 1]]))
        assert bench.taken == [64]
        bench.calls.took(Consumed([[1, 2]]))
        assert bench.taken == [64, 128, 192]
        bench.calls.took(Consumed([[1, 1], [2, 1]]))
        job.respond(None, True)
        assert bench.taken == [64, 128, 192]
        assert bench.released == []

    def test_errors_among_them(self, benches):
        """Each response is taken when it is its turn, also behind an error."""
        bench = benches(DECOUPLED)
        job = bench.call(decoupled=True)
        job.respond(InferenceError("no"), False)
        job.respond(bench.response(64), False)
        bench.calls.took(Consumed([[1, 1]]))
        assert bench.taken == []
        bench.calls.took(Consumed([[1, 1]]))
        assert bench.taken == [64]

    def test_cannot_be_granted(self, bench):
        """If the caller cannot be given the memory its call fails, and the response is given back."""
        bench.connection.link._grants.close()
        bench.call().respond(bench.response(), True)
        (message,) = bench.stub.hear()
        assert "cannot be given a region of shared memory" in message.response[1]
        assert bench.released == [64]
        bench.outputs.close()
        assert not is_open(bench.outputs)

    def test_too_large_for_a_frame(self, bench):
        """A response with more text than a frame holds fails the call. Other calls are not affected."""
        job = bench.call()
        response = bench.response()
        response.parameters["a"] = "x" * FRAME_BYTES_MAX
        job.respond(response, True)
        (message,) = bench.stub.hear()
        assert message.final
        assert message.response[0] == Code.INTERNAL
        assert len(bench.calls) == 0
        assert bench.released == [64]
        bench.outputs.close()
        assert not is_open(bench.outputs)

    def test_error_too_large_for_a_frame(self, bench):
        """An error that is too long fails the call."""
        bench.call().respond(InferenceError("x" * FRAME_BYTES_MAX), True)
        (message,) = bench.stub.hear()
        assert message.final
        assert message.response[0] == Code.INTERNAL


class TestCancel:
    def test_of_one_that_runs(self, bench):
        """The callee gets the cancellation, and answers all the same."""
        job = bench.call()
        bench.calls.cancel(CancelCall(1))
        bench.calls.cancel(CancelCall(1))
        assert bench.callee.cancelled == [job]
        job.respond(bench.response(), True)
        assert bench.stub.hear() == [answer(64, region=bench.outputs)]

    def test_of_one_that_queues(self, bench):
        """It ends at once."""
        bench.callee.is_busy = True
        bench.call()
        bench.calls.cancel(CancelCall(1))
        assert bench.stub.hear() == [Unread([1]), Answer(1, [Code.CANCELLED, "", NO_SLOT, [], ""], True)]

    def test_of_one_that_is_over(self, bench):
        """Answer and cancellation may cross."""
        bench.call().respond(bench.response(), True)
        bench.calls.cancel(CancelCall(1))
        bench.calls.cancel(CancelCall(2))
        assert bench.callee.cancelled == []

    def test_takes_the_rest(self, benches):
        """Responses that have come and those that still come count as taken: the sender must not wait."""
        bench = benches(DECOUPLED)
        job = bench.call(decoupled=True)
        job.respond(bench.response(64), False)
        bench.stub.hear()
        bench.calls.cancel(CancelCall(1))
        assert bench.taken == [64]
        job.respond(bench.response(128), False)
        assert bench.released == [128]
        assert bench.stub.hear() == []
        job.respond(bench.response(192), True)
        assert bench.stub.hear() == [answer(192, hold=2, region=bench.outputs)]

    def test_of_a_batch(self, bench):
        """The calls that a cancelled batch waits for are cancelled, and no others."""
        jobs = [bench.call(number=number, waiting=waiting) for number, waiting in [(1, 5), (2, 6), (3, 0), (4, 5)]]
        bench.calls.cancel_batch(5)
        assert bench.callee.cancelled == [jobs[0], jobs[3]]


class TestTheCallerDies:
    def test_while_calls_are_under_way(self, bench):
        """Callees get the cancellation, and their responses are released."""
        job = bench.call()
        bench.calls.died()
        bench.stub.exit()
        assert bench.callee.cancelled == [job]
        job.respond(bench.response(), True)
        assert bench.released == [64]
        job.free()
        assert bench.stub.hear() == []
        assert len(bench.calls) == 0

    def test_in_the_middle_of_many_responses(self, benches):
        """Each of many responses is released; those that the caller had not taken count as taken."""
        bench = benches(DECOUPLED)
        job = bench.call(decoupled=True)
        job.respond(bench.response(64), False)
        bench.calls.died()
        assert bench.released == [64]
        assert bench.taken == [64]
        job.respond(bench.response(128), False)
        job.respond(None, True)
        assert bench.released == [64, 128]
        assert len(bench.calls) == 0

    def test_with_holds(self, bench):
        """Responses that it held are released, once."""
        bench.call().respond(bench.response(), True)
        bench.outputs.close()
        bench.calls.died()
        assert bench.released == [64]
        assert not is_open(bench.outputs)

    @pytest.mark.parametrize("word", ["LoadFailed", "Stopped", "nonsense"])
    def test_is_as_good_as_dead(self, benches, word):
        """A response to a stub that has ended, or has broken the protocol, is released."""
        bench = benches(DECOUPLED, state=State.LOADING if word == "LoadFailed" else State.SERVING)
        bench.calls.call(Call(1, "other", -1, wire(tensor()), True, 0))
        if bench.server.waiting:
            bench.server.waiting[0][-1](bench.callee)
        (job,) = bench.callee.jobs
        if word == "LoadFailed":
            bench.stub.say(LoadFailed("no"))
        elif word == "Stopped":
            bench.connection.stop()
            bench.stub.say(Stopped())
        else:
            bench.connection.link.data_received(b"\xc1")
        assert bench.connection.link.state is State.CLOSED
        job.respond(bench.response(64), False)
        job.respond(bench.response(128), True)
        job.free()
        bench.calls.died()
        bench.stub.exit()
        assert sorted(bench.released) == [64, 128]
        assert not is_open(bench.connection.responses)
        bench.outputs.close()
        assert not is_open(bench.outputs)


GOOD = tensor()
BAD_TENSORS = [
    None, 1, "INxyz", [], {}, GOOD[:4], GOOD[:5], [*GOOD, 0],
    [None, *GOOD[1:]], [1, *GOOD[1:]], [b"IN", *GOOD[1:]], [["IN"], *GOOD[1:]],
    ["IN", None, *GOOD[2:]], ["IN", "TYPE_FP32", *GOOD[2:]], ["IN", [], *GOOD[2:]], ["IN", 1, *GOOD[2:]],
    *[[*GOOD[:5], *memory] for memory in [(1, 0), (2, 0), (0, 1), (-1, 0), (None, 0), (0, "0"), ([], {})]],
    *[[*each, 0, 0] for each in [
        ["IN", "FP32", None, 0, 8], ["IN", "FP32", "12", 0, 8], ["IN", "FP32", {}, 0, 8],
        ["IN", "FP32", [1.0], 0, 8],
        ["IN", "FP32", [-1], 0, 8], ["IN", "FP32", [True], 0, 8], ["IN", "FP32", [[1]], 0, 8],
        ["IN", "FP32", ["1"], 0, 8],
        ["IN", "FP32", [2], None, 8], ["IN", "FP32", [2], "0", 8], ["IN", "FP32", [2], 0.0, 8],
        ["IN", "FP32", [2], [], 8],
        ["IN", "FP32", [2], -1, 8], ["IN", "FP32", [2], -(1 << 36), 8], ["IN", "FP32", [2], (1 << 36) - 1, 8],
        ["IN", "FP32", [2], (64 << 30) - 4096, 1], ["IN", "FP32", [2], 0, (64 << 30) - 4095],
        ["IN", "FP32", [2], 0, -1], ["IN", "FP32", [2], 0, None], ["IN", "FP32", [2], 0, "8"],
        ["IN", "FP32", [2], 0, 8.0],
        ["IN", "FP32", [2], 0, float("nan")], ["IN", "FP32", [2], 0, []], ["IN", "FP32", [2], 0, 1 << 63],
        ["IN", "FP32", [2], (1 << 64) - 1, 8], ["IN", "FP32", [2], address(10**6, 0), 8],
        ["IN", "FP32", [1, 2], bytes(8), 7], ["IN", "FP32", [1, 2], bytes(8), 9], ["IN", "FP32", [1, 2], bytes(8), 8.0],
        ["IN", "FP32", [1, 2], bytes(8), None], ["IN", "FP32", [1, 2], bytes(8), "8"], ["IN", "FP32", [1, 2], b"", -1],
        ["IN", "FP32", [1, 2], bytes(1), True], ["IN", "FP32", [1, 2], "x" * 8, 8],
    ]],
]  # fmt: skip
BAD_REQUESTS = [
    [], wire()[:6], wire()[:7], wire()[:8], [*wire(), None],
    *[[*wire()[:6], tensors, "", None] for tensors in [None, 5, "text", {"a": 1}]],
    *[[*each, "", None] for each in [
        ["7", None, 0, 0, None, "", []], ["7", 0.5, 0, 0, None, "", []], ["7", [], 0, 0, None, "", []],
        ["7", 0, None, 0, None, "", []], ["7", 0, "1", 0, None, "", []], ["7", 0, 1.5, 0, None, "", []],
        ["7", 0, 0, None, None, "", []], ["7", 0, 0, "9", None, "", []], ["7", 0, 0, 1.5, None, "", []],
        ["7", 0, 0, 0, 5, "", []], ["7", 0, 0, 0, True, "", []], ["7", 0, 0, 0, 1.5, "", []],
        ["7", 0, 0, 0, None, "{", []], ["7", 0, 0, 0, None, 5, []], ["7", 0, 0, 0, None, [1], []],
        ["7", 0, 0, 0, None, '{"a":[]}', []], ["7", 0, 0, 0, None, "[]", []], ["7", 0, 0, 0, None, None, []],
        [None, 0, 0, 0, None, "", []], [7, 0, 0, 0, None, "", []], [[], 0, 0, 0, None, "", []],
        ["7", 0, 0, 0, "OUT", "", []], ["7", 0, 0, 0, {"OUT": 1}, "", []], ["7", 0, 0, 0, [1], "", []],
        ["7", 0, 0, 0, [[]], "", []], ["7", 0, 0, 0, [None], "", []], ["7", 0, True, 0, None, "", []],
    ]],
    *[[*wire(INLINE)[:7], trace, None] for trace in [5, [], None]],
    *[[*wire(INLINE)[:8], places] for places in [{}, {"OUT": [0, 8, 0, 0]}]],
]  # fmt: skip
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=4)
    | st.binary(max_size=4) | st.sampled_from(["FP32", "IN", 0, 8]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=2), inner, max_size=5),
    max_leaves=10,
)  # fmt: skip
JUNK_TENSORS = st.lists(
    st.one_of(JUNK, st.tuples(st.just("IN"), st.just("FP32"), JUNK, JUNK, JUNK, JUNK, JUNK).map(list)), max_size=3
)


class TestHostile:
    def spotless(self, bench):
        """No job was started, and no region is held once the stub has been killed."""
        assert bench.callee.jobs == []
        bench.calls.died()
        bench.stub.exit()
        assert not is_open(bench.connection.responses)
        bench.requests.close()
        assert not is_open(bench.requests)

    @pytest.mark.parametrize("wrong", BAD_TENSORS, ids=repr)
    def test_input(self, bench, wrong):
        """A malformed input, or one in memory that the stub may not use, is the stub's fault."""
        request = wire(tensor(), wrong)
        with pytest.raises(PeerError):
            bench.calls.call(Call(1, "other", -1, request, False, 0))
        self.spotless(bench)

    def test_input_in_the_region_of_another(self, bench):
        """A region is a stub's business once it was granted, and no longer than until it is gone."""
        there = tensor(address(bench.outputs.number, 0))
        with pytest.raises(PeerError, match=f"there is no region {bench.outputs.number}"):
            bench.call(there)
        bench.connection.regions.grant(bench.outputs)
        bench.call(there, number=2)
        bench.callee.jobs[0].free()
        bench.outputs.close()
        with pytest.raises(PeerError):
            bench.call(there, number=3)

    @pytest.mark.parametrize("request_", BAD_REQUESTS, ids=repr)
    def test_request(self, bench, request_):
        """A malformed request is the stub's fault."""
        with pytest.raises(PeerError):
            bench.calls.call(Call(1, "other", -1, request_, False, 0))
        self.spotless(bench)

    @given(st.lists(JUNK, max_size=9) | st.tuples(*[JUNK] * 6, JUNK_TENSORS, JUNK, JUNK).map(list)
           | JUNK_TENSORS.map(lambda tensors: wire(*tensors)))  # fmt: skip
    def test_junk(self, request):
        """Arbitrary data of a stub is a request, or the stub's fault."""
        with contextlib.closing(Bench()) as bench:
            try:
                bench.calls.call(Call(1, "other", -1, request, False, 0))
            except PeerError:
                self.spotless(bench)
            else:
                ended = [message for message in bench.stub.hear() if type(message) is Answer]
                assert len(ended) + len(bench.callee.jobs) == 1

    def test_call_twice(self, bench):
        """A number is one call's until that is over."""
        job = bench.call()
        with pytest.raises(PeerError, match="call 1 is made twice"):
            bench.call()
        job.respond(None, True)
        bench.call()

    def test_too_many_calls(self, bench, monkeypatch):
        """There is a limit to how many there are at a time."""
        for module in (calls_module, model_call):
            monkeypatch.setattr(module, "CALLS_MAX", 2)
        jobs = [bench.call(number=number) for number in (1, 2)]
        bench.calls.call(Call(3, "other", -1, wire(tensor()), False, 0))
        (answer,) = [each for each in bench.stub.hear() if type(each) is Answer]
        assert (answer.call, answer.final) == (3, True)
        assert answer.response[1].endswith("more than 2 calls are under way")
        jobs[0].respond(None, True)
        bench.call(number=4)

    @pytest.mark.parametrize("holds", [[0], [2], [1, 1], [-1], [None], ["1"], [[1]], [{}], [True], [1.0]], ids=repr)
    def test_drop(self, bench, holds):
        """A hold can be dropped once."""
        bench.call().respond(bench.response(), True)
        with pytest.raises(PeerError, match="is dropped and was not held"):
            bench.calls.drop(ReleaseHold(holds))
        bench.calls.died()
        assert bench.released == [64]

    @pytest.mark.parametrize(
        "pair", [None, 1, [], [1], [1, 1, 1], [1, None], [1, "1"], [1, 1.0], [[1], 1], [{}, 1], {}, "11"], ids=repr
    )
    def test_took(self, benches, pair):
        """A consumed item is a pair of call and number; anything else is the stub's fault."""
        bench = benches(DECOUPLED)
        bench.call(decoupled=True).respond(bench.response(), False)
        with pytest.raises(PeerError):
            bench.calls.took(Consumed([pair]))

    @pytest.mark.parametrize("pair", [[1, 10**6], [1, 0], [1, -1], [1, 2**63], [99, 1], [-1, 1]], ids=repr)
    def test_took_another_number(self, benches, pair):
        """However many a stub says it took, each response is taken once."""
        bench = benches(DECOUPLED)
        job = bench.call(decoupled=True)
        job.respond(bench.response(), False)
        bench.calls.took(Consumed([pair]))
        bench.calls.took(Consumed([[1, 1]]))
        assert bench.taken == [64]

    def test_waits_with_a_batch_that_is_none(self, bench):
        """A stub may say that anything waits; that is no harm."""
        for number, waiting in enumerate((-1, 2**63, 99), 1):
            bench.call(number=number, waiting=waiting)
        bench.calls.cancel_batch(99)
        assert bench.callee.cancelled == [bench.callee.jobs[2]]


class TestDeadlock:
    def test_is_refused(self, bench):
        """A call that queues where everybody waits for the caller is refused, in words that say what to do."""
        bench.callee.is_busy = True
        bench.callee.workers = [Instance("other", [([bench.caller], "m")])]
        bench.caller.waiting_calls = lambda: bench.calls.waiting(1)
        bench.call(waiting=1)
        unread, refused = bench.stub.hear()
        assert unread == Unread([1])
        code, message, *_ = refused.response
        assert code == Code.UNAVAILABLE
        assert message == (
            f"{PREFIX}the call would wait for ever, because every instance that could serve it waits for this one: "
            "m -> other -> m. Give one of these models more instances"
        )
        assert len(bench.calls) == 0

    @pytest.mark.parametrize(("waiting", "somebody_is_free"), [(0, False), (0, True), (1, True)])
    def test_is_not_refused(self, bench, waiting, somebody_is_free):
        """A call that does not wait is queued, and so is one that a free instance can serve."""
        bench.callee.is_busy = True
        stuck = Instance("other", [([bench.caller], "m")])
        bench.callee.workers = [stuck, Instance("other")] if somebody_is_free else [stuck]
        bench.caller.waiting_calls = lambda: bench.calls.waiting(1)
        bench.call(waiting=waiting)
        assert bench.stub.hear() == []
        assert len(bench.calls) == 1

    def test_waiting(self, bench):
        """The workers that have, or may take, the calls that a batch waits for."""
        bench.call(number=1, waiting=1)
        bench.callee.is_busy = True
        bench.call(number=2, waiting=1)
        bench.call(number=3, waiting=0)
        bench.call(number=4, waiting=2)
        with_one, queued = bench.calls.waiting(1)
        assert with_one == ([bench.callee.workers[0]], "other")
        assert queued == (bench.callee.workers, "other")


class Life:
    """One life of the callee's stub, as an instance of its model."""

    name = "other_0"
    model_name = "other"
    down = ""
    is_ready = True
    is_idle = False
    plain = None

    def __init__(self, spec, memory, model):
        self.stub = Stub(self.name, memory.region)
        plan = instance_spec(self.name, spec, memory, model.statistics, None)
        self.batches = StubBatches(
            plan, self.stub.connection, model.scheduler, Calls(plan, self.stub.connection, asyncio.TaskGroup())
        )
        handlers = {
            Result: self.batches.answered,
            Failed: self.batches.answered,
            Respond: self.batches.responded,
            Requeue: self.batches.put_back,
            Retired: self.batches.retained.retired,
        }
        self.stub.connection.link.attach(handlers, lambda: None)
        self.batches.open()

    @property
    def inflight(self):
        return self.batches

    def workers(self):
        return self.batches.workers()

    def die(self):
        self.stub.exit()
        self.batches.died(KILLED, restarts=True)


class Pair:
    """Two stubs, of a model that calls and of the one that is called, and all that lies between them."""

    def __init__(self, text=""):
        self.requests = create_region("requests of the caller")
        self.caller = Stub("m_0", self.requests)
        server = Server()
        plan = instance_spec("m_0", spec_of("m"), None, ModelStatistics(), server)
        self.calls = Calls(plan, self.caller.connection, asyncio.TaskGroup())
        handlers = {
            Call: self.calls.call, CancelCall: self.calls.cancel, Consumed: self.calls.took,
            ReleaseHold: self.calls.drop,
        }  # fmt: skip
        self.caller.connection.link.attach(handlers, lambda: None)
        self.spec = spec_of("other", text)
        self.memory = RequestMemory("other", 1 << 20, 1 << 20)
        self.model = ModelVersion(self.spec, 1, self.memory, lambda model, reason: None)
        server.models["other"] = self.model
        self.lives = []
        self.start()

    def start(self):
        """Start the callee's stub, or start it again."""
        self.life = Life(self.spec, self.memory, self.model)
        self.lives.append(self.life)
        self.model.serve([self.life])
        self.model.scheduler.capacity_freed()

    @property
    def callee(self):
        return self.life.stub

    def call(self, number=1, at=64, decoupled=False):
        self.caller.say(Call(number, "other", -1, wire(tensor(at)), decoupled, 0))

    def end(self):
        """Both stubs die, and the callee is not started again; the regions that are left over then."""
        regions = [self.caller.connection.responses, *(life.stub.connection.responses for life in self.lives)]
        self.caller.exit()
        self.calls.died()
        self.model.serve([])
        self.life.die()
        self.model.scheduler.fail_all(InferenceError("no"))
        live = self.memory.live
        self.requests.close()
        self.memory.close()
        for stub in (self.caller, *(life.stub for life in self.lives)):
            stub.close()
        regions += [self.requests, self.memory.region]
        return live, [region for region in regions if is_open(region)]


@pytest.fixture
def pairs():
    made = []

    def make(*args):
        made.append(Pair(*args))
        return made[-1]

    yield make
    for pair in made:
        assert pair.end() == (0, [])


@pytest.fixture
def pair(pairs):
    return pairs()


def output(slot=0):
    """A response that the caller has to hold."""
    return [OK, "", slot, [["OUT", "UINT8", [SIZE], slot, SIZE, 0, 0]], ""]


class TestBetweenTwoStubs:
    def test_there_and_back(self, pair):
        """Inputs and outputs stay where they are: both stubs are granted the regions before they read them, and both
        slots are freed by their owners.
        """
        ours, theirs = pair.caller.connection.responses.number, pair.callee.connection.responses.number
        pair.call()
        assert pair.callee.granted() == [ours]
        (infer,) = pair.callee.hear()
        assert infer.requests == [
            ["7", 0, 0, 0, None, "", [["IN", "FP32", [1, 2], address(ours, 64), 8, 0, 0]], "", None]
        ]
        pair.callee.say(Result(infer.batch, [output(128)], [], 0, 0))
        assert pair.caller.granted() == [theirs]
        assert pair.caller.hear() == [Unread([1]), answer(128, region=pair.callee.connection.responses)]
        pair.call(number=2)
        (infer,) = pair.callee.hear()
        assert infer.released == []
        pair.callee.say(Result(infer.batch, [output(256)], [], 0, 0))
        pair.caller.say(ReleaseHold([1]))
        pair.call(number=3)
        assert pair.callee.hear()[0].released == [128]
        assert pair.callee.granted() == []

    def test_an_input_that_the_callee_keeps(self, pair):
        """Its memory is the callee's until it lets go, or dies."""
        pair.call(1)
        pair.callee.say(Result(1, [output()], [0], 0, 0))
        assert [type(message) for message in pair.caller.hear()] == [Answer]
        pair.callee.say(Retired([1]))
        assert pair.caller.hear() == [Unread([1])]
        pair.call(2)
        pair.callee.say(Result(2, [output()], [0], 0, 0))
        pair.caller.hear()
        pair.life.die()
        assert pair.caller.hear() == [Unread([2])]
        pair.start()

    def test_the_callee_dies_and_its_response_lives(self, pair):
        """A response that the caller holds stays until it is released; then the region is closed."""
        pair.call()
        pair.callee.say(Result(1, [output()], [], 0, 0))
        pair.caller.hear()
        region = pair.callee.connection.responses
        pair.life.die()
        pair.start()
        assert is_open(region)
        assert pair.caller.hear() == []
        pair.caller.say(ReleaseHold([1]))
        assert not is_open(region)
        assert pair.caller.hear() == [Unmap([region.number])]

    def test_the_callee_dies_while_it_runs(self, pair):
        """The call fails; the one that waited behind it goes to the next stub, which is given the region anew."""
        pair.call(1)
        pair.call(2)
        pair.callee.hear()
        pair.life.die()
        unread, failure = pair.caller.hear()
        assert unread == Unread([1])
        assert (failure.call, failure.final) == (1, True)
        assert "is not healthy" in failure.response[1]
        pair.start()
        assert pair.callee.granted() == [pair.caller.connection.responses.number]
        (infer,) = pair.callee.hear()
        pair.callee.say(Result(infer.batch, [output()], [], 0, 0))
        assert [type(message) for message in pair.caller.hear()] == [Unread, Answer]

    def test_the_caller_dies(self, pair):
        """The callee sees the cancellation; the caller's memory stays until the callee has read it."""
        pair.call(1)
        pair.call(2)
        region = pair.caller.connection.responses
        flags = pair.callee.connection.responses
        pair.calls.died()
        pair.caller.exit()
        assert [flags.flag(serial) for serial in (1, 2, 3)] == [1, 1, 0]
        pair.callee.hear()
        pair.callee.say(Result(1, [output()], [], 0, 0))
        assert is_open(region)
        pair.callee.say(Result(2, [output(64)], [], 0, 0))
        assert not is_open(region)
        assert pair.callee.hear() == [Unmap([region.number])]
        assert [flags.flag(serial) for serial in (1, 2, 3)] == [0, 0, 0]

    def test_is_put_back(self, pair):
        """A call that waits behind one that itself waits queues again, and is answered in the end."""
        pair.call(1)
        pair.call(2)
        pair.callee.say(Requeue([2]))
        assert len(pair.model.scheduler) == 1
        pair.callee.say(Result(1, [output()], [], 0, 0))
        assert [message.batch for message in pair.callee.hear()] == [1, 2, 3]
        pair.callee.say(Result(3, [output(64)], [], 0, 0))
        assert [message.call for message in pair.caller.hear() if type(message) is Answer] == [1, 2]

    def test_a_cancelled_call_is_put_back(self, pair):
        """A call that was cancelled and put back is not started again."""
        pair.call(1)
        pair.call(2)
        pair.caller.say(CancelCall(2))
        pair.callee.hear()
        pair.callee.say(Requeue([2]))
        assert pair.caller.hear() == [Unread([2]), Answer(2, [Code.CANCELLED, "", NO_SLOT, [], ""], True)]
        pair.callee.say(Result(1, [output()], [], 0, 0))
        assert pair.callee.hear() == []

    def test_many_responses(self, pairs):
        """Credit for responses that the caller takes reaches the sender, so that it can send more."""
        pair = pairs(DECOUPLED)
        pair.call(decoupled=True)
        pair.callee.say(Result(1, [SENDER], [], 0, 0))
        for slot in range(32):
            pair.callee.say(Respond(1, output(slot), False))
        pair.callee.hear()
        answers = pair.caller.hear()
        assert [message.response[2] for message in answers] == list(range(1, 33))
        for _ in range(15):
            pair.caller.say(Consumed([[1, 1]]))
        assert pair.callee.hear() == []
        pair.caller.say(Consumed([[1, 1]]))
        assert pair.callee.hear() == [Credit([[1, 16]])]
        pair.caller.say(ReleaseHold(list(range(1, 33))))
        assert pair.callee.hear() == [Credit([[1, 16]])]
        pair.callee.say(Respond(1, None, True))
        assert pair.caller.hear() == [Unread([1]), Answer(1, None, True)]

    def test_many_responses_that_are_not_taken_one_by_one(self, pairs):
        """To drop a response is to take it."""
        pair = pairs(DECOUPLED)
        pair.call(decoupled=True)
        for slot in range(64):
            pair.callee.say(Respond(1, output(slot), False))
        pair.callee.hear()
        pair.caller.say(ReleaseHold(list(range(1, 65))))
        said = pair.callee.hear()
        assert [message for message in said if type(message) is Credit] == [Credit([[1, 16]])] * 4
        assert [message for message in said if type(message) is Release] == [Release(list(range(64)))]

    def test_of_a_model_that_answers_to_no_purpose(self, pair):
        """A callee that speaks nonsense is killed, and the caller reads why its call failed."""
        pair.call()
        pair.callee.say(Result(1, [[OK, "", 0, [["OUT", "FP32", [2], 1 << 40, 8, 0, 0]], ""]], [], 0, 0))
        assert pair.caller.hear() == []
        pair.life.die()
        assert "is not healthy" in pair.caller.hear()[-1].response[1]
        pair.start()

    def test_a_log_in_between(self, pair, caplog):
        """Other messages of a stub between those of calls have no effect on these."""
        pair.call()
        pair.callee.say(Log(40, "hello", "model.py", 1), Result(1, [output()], [], 0, 0))
        assert "hello" in caplog.text
        assert [type(message) for message in pair.caller.hear()] == [Unread, Answer]


NUMBERS = st.integers(0, 7)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.booleans()),
        st.tuples(st.just("cancel"), NUMBERS),
        st.tuples(st.just("took"), NUMBERS, st.integers(0, 3)),
        st.tuples(st.just("drop"), NUMBERS),
        st.tuples(st.just("result"), st.sampled_from([SENDER, output(), [3, "no", -1, [], ""]]), st.booleans()),
        st.tuples(st.just("failed"), st.booleans()),
        st.tuples(st.just("respond"), NUMBERS, st.sampled_from([None, output(64), [3, "no", -1, [], ""]]),
                  st.booleans()),
        st.tuples(st.just("put back"), NUMBERS),
        st.tuples(st.just("retired"), NUMBERS),
        st.tuples(st.just("callee dies")),
        st.tuples(st.just("caller dies")),
    ),
    max_size=25,
)  # fmt: skip


class TestWhateverHappens:
    """Between two stubs that keep to the protocol, and may die at any moment."""

    def play(self, pair, step):
        """Play one step, if it is legal now. Its number says which call, hold or request it is about."""
        kind, *what = step
        batches, callee, caller = pair.life.batches, pair.callee, pair.caller
        posted = list(batches._inflight.items())
        alive = not pair.calls._over
        if kind == "call" and alive:
            self.made += 1
            # Its inputs lie in its own region, or in one that it was granted.
            others = list(caller.connection.regions._granted)
            pair.call(self.made, address(others[0], 64) if what[0] and others else 64, pair.spec.decoupled)
        elif kind == "cancel" and alive:
            caller.say(CancelCall(what[0]))
        elif kind == "took" and alive:
            caller.say(Consumed([[what[0], what[1]]]))
        elif kind == "drop" and alive and pair.calls._holds:
            holds = sorted(pair.calls._holds)
            caller.say(ReleaseHold([holds[what[0] % len(holds)]]))
        elif kind == "result" and posted:
            number, record = posted[0]
            response, retained = what
            if response is not None and (number in record.finished or number in batches._streams):
                response = SENDER  # the stub's answer for a request whose sender is in use
            if pair.spec.decoupled:
                response = SENDER
            callee.say(Result(number, [response], [0] if retained else [], 0, 0))
        elif kind == "failed" and posted:
            callee.say(Failed(posted[0][0], "no", [0] if what[0] else [], 0, 0))
        elif kind == "respond":
            self.respond(pair, *what)
        elif kind == "put back" and len(posted) > 1:
            callee.say(Requeue([posted[1][0]]))
        elif kind == "retired" and batches.retained.by_serial:
            callee.say(Retired([next(iter(batches.retained.by_serial))]))
        elif kind == "callee dies":
            pair.life.die()
            pair.start()
        elif kind == "caller dies" and alive:
            pair.calls.died()
            caller.exit()

    def respond(self, pair, number, response, final):
        """Have a sender answer one of the requests that are open, as far as it still may."""
        batches = pair.life.batches
        running = [serial for serial, record in list(batches._inflight.items())[:1] if serial not in record.finished]
        serials = sorted({*running, *batches._streams.by_serial})
        if not serials:
            return
        serial = serials[number % len(serials)]
        stream = batches._streams.by_serial.get(serial)
        if response is None and not final:
            return
        if stream is not None and stream.kept is not None:
            response, final = None, True
        pair.callee.say(Respond(serial, response, final))

    @pytest.mark.parametrize("text", ["", DECOUPLED], ids=["plain", "decoupled"])
    @given(steps=STEPS)
    def test_nothing_is_lost(self, text, steps):
        """Every call is answered to the end once, its inputs come back once, and no memory is left over."""
        self.made = 0
        pair = Pair(text)
        heard = []
        for step in steps:
            self.play(pair, step)
            heard += pair.caller.hear()
            assert pair.callee.connection.link.state is not State.CLOSED
            assert pair.caller.connection.link.state is State.SERVING
        caller_lived = not pair.calls._over
        if caller_lived:  # all that is left ends
            pair.model.serve([])
            pair.life.die()
            pair.model.scheduler.fail_all(InferenceError("no"))
            heard += pair.caller.hear()
        finals = [message.call for message in heard if type(message) is Answer and message.final]
        unread = [number for message in heard if type(message) is Unread for number in message.calls]
        assert len(set(finals)) == len(finals)
        assert len(set(unread)) == len(unread)
        if caller_lived:
            assert set(finals) == set(unread) == set(range(1, self.made + 1))
        assert pair.end() == (0, [])

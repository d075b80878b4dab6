# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The shell around sequences, between jobs and instances that only note their calls."""

import asyncio
import time
from dataclasses import replace

import pytest

from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.statistics import FailureReason, ModelStatistics
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.runtime.scheduling import response_order
from pyruntime.runtime.scheduling.factory import create_scheduler
from pyruntime.runtime.scheduling.scheduler import Scheduler
from pyruntime.runtime.scheduling.sequence_scheduler import SequenceScheduler
from pyruntime.utils.addresses import address
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import RequestOptions
from tests.patience import PATIENCE_S

from ..event_loops import in_a_loop, settle
from ..model_specs import spec_from

START, END = 1, 2
CONFIG = "name: 'm' backend: 'b' max_batch_size: 4 input { name: 'IN' data_type: TYPE_INT32 dims: 2 } "
CONTROLS = """
control_input { name: 'S' control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 2, 3 ] } }
control_input { name: 'R' control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }
control_input { name: 'I' control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT32 } }
"""
STATE = "state { input_name: 'A' output_name: 'B' data_type: TYPE_INT32 dims: 1 } "


def spec_of(text):
    return spec_from(CONFIG + text, files=[])


class Instance:
    """Takes batches while it has capacity."""

    is_idle = True

    def __init__(self, capacity=9):
        self.capacity = capacity
        self.is_ready = True
        self.batches = []
        self.executed = asyncio.Event()
        self.dropped = []
        self.has_dropped = asyncio.Event()

    def drop_sequences(self, ids):
        self.dropped.append(ids)
        self.has_dropped.set()

    @property
    def inflight(self):
        """It stands for its batches, too."""
        return self

    def execute(self, batch):
        assert self.capacity > 0
        self.capacity -= 1
        self.batches.append(batch)
        self.executed.set()

    def finish(self, owner):
        """The oldest batch has been executed."""
        for each in self.batches.pop(0):
            each.free()
            each.respond(None, True)
        self.capacity += 1
        owner.capacity_freed()


class Slot:
    def __init__(self):
        self.freed = 0

    def free(self):
        self.freed += 1


@pytest.fixture
def memory():
    made = RequestMemory("m", 1 << 16, 1 << 16)
    yield made
    made.close()


def job(id=1, flags=0, outcomes=None, timeout_s=0.0, tensors=None):
    def respond(outcome, final):
        assert final
        if outcomes is not None:
            outcomes.append(outcome)

    tensors = [("IN", "INT32", [1, 2], 0, 8, 0, 0)] if tensors is None else tensors
    options = RequestOptions(id, flags, int(timeout_s * 1e6), ["OUT"])
    return Job("", options, tensors, 1, None, [Slot()], respond, time.monotonic_ns())


@pytest.fixture
def make(memory):
    """`make(batching, *instances, on_change=...)`: a scheduler, with instances that it serves."""

    def make(batching, *instances, on_change=lambda: None, statistics=None, idle_us=10**8):
        spec = spec_of(f"sequence_batching {{ max_sequence_idle_microseconds: {idle_us} {batching} }}")
        made = create_scheduler(spec, on_change, statistics or ModelStatistics(), memory)
        assert type(made) is SequenceScheduler
        made.serve(instances)
        return made

    return make


def contents(memory, each):
    """The inputs of a job, by name, as they lie in the memory of requests."""
    view = memory.region.view
    return {name: bytes(view[at : at + size]) for name, _, _, at, size, _, _ in each.tensors if type(at) is int}


def test_choice(memory):
    """A model without sequences has the scheduler for single requests."""
    for text in ("", "dynamic_batching {}"):
        assert type(create_scheduler(spec_of(text), lambda: None, ModelStatistics(), memory)) is Scheduler


class TestDispatch:
    @in_a_loop
    async def test_in_order(self, make):
        """The next request of a sequence goes to its instance once the one before it is done with."""
        instances = [Instance(), Instance()]
        made = make("", *instances)
        jobs = [job(1, START), job(1), job(2, START)]
        for each in jobs:
            made.submit(each)
        assert [instance.batches for instance in instances] == [[[jobs[0]]], [[jobs[2]]]]
        assert len(made) == 1
        instances[0].finish(made)
        assert instances[0].batches == [[jobs[1]]]
        assert repr(made) == "<SequenceScheduler m [0 queued | 2 instances]>"

    @in_a_loop
    async def test_together(self, make):
        """Requests that became next while a batch ran are executed together, though they were freed one by one."""
        instance = Instance(capacity=1)
        made = make("", instance)
        first, second = [job(1, START), job(2, START)], [job(1), job(2)]
        made.submit(job(3, START))
        for each in [*first, *second]:
            made.submit(each)
        instance.finish(made)
        assert instance.batches == [first]
        instance.finish(made)
        assert instance.batches == [second]

    @in_a_loop
    async def test_released_late(self, make):
        """A model may be done with a request long after its place was freed: then too the next one follows."""
        instance = Instance()
        made = make("", instance)
        first, second = job(1, START), job(1)
        made.submit(first)
        made.submit(second)
        made.capacity_freed()
        assert instance.batches == [[first]]
        instance.executed.clear()
        first.free()
        first.free()
        await instance.executed.wait()
        assert instance.batches == [[first], [second]]

    @in_a_loop
    async def test_delay(self, make):
        """A batch that may grow is executed when its oldest request has waited for long enough."""
        instance = Instance()
        made = make("direct { max_queue_delay_microseconds: 1000 minimum_slot_utilization: 1 }", instance)
        only = job(1, START)
        made.submit(only)
        await instance.executed.wait()
        assert time.monotonic_ns() - only.arrived_ns >= 1_000_000
        assert instance.batches == [[only]]

    @in_a_loop
    async def test_wait_empty(self, make):
        """The wait ends when all requests are being executed."""
        instance = Instance(capacity=0)
        made = make("", instance)
        await made.wait_empty(PATIENCE_S)
        made.submit(job(1, START))
        waiting = asyncio.ensure_future(made.wait_empty(PATIENCE_S))
        await asyncio.sleep(0)
        instance.capacity = 1
        made.capacity_freed()
        await waiting
        assert len(instance.batches) == 1


class TestLeaving:
    @in_a_loop
    async def test_drains(self, make):
        """An instance that leaves executes the sequences that it has, up to their ends; others go elsewhere."""
        leaving, staying = Instance(), Instance()
        made = make("", leaving)
        first, second = job(1, START), job(1, END)
        made.submit(first)
        made.serve([staying])
        waiting = asyncio.ensure_future(made.wait_left(leaving))
        assert not made.has_left(leaving)
        leaving.finish(made)
        made.submit(job(2, START))
        made.submit(second)
        assert leaving.batches == [[second]]
        assert len(staying.batches) == 1
        await asyncio.sleep(0)
        assert not waiting.done()
        leaving.finish(made)
        await waiting
        assert made.has_left(leaving)
        made.submit(job(3, START))
        assert leaving.batches == []
        await made.wait_left(leaving)

    @in_a_loop
    async def test_expires(self, make):
        """Nobody needs to say that a sequence is over."""
        leaving = Instance()
        made = make("", leaving, idle_us=1000)
        made.submit(job(1, START))
        leaving.finish(made)
        made.serve([Instance()])
        await made.wait_left(leaving)

    @in_a_loop
    async def test_dies(self, make):
        """An instance that dies has left; its sequences are lost, as those of any other."""
        leaving = Instance()
        outcomes = []
        made = make("", leaving)
        made.submit(job(1, START))
        made.submit(job(1, 0, outcomes))
        made.serve([Instance()])
        leaving.is_ready = False
        made.executor_changed()
        assert "sequence 1 of model 'm' is lost" in outcomes[0].message
        await made.wait_left(leaving)

    @in_a_loop
    async def test_hurry(self, make):
        """Where all instances end, a sequence is not waited for."""
        leaving = Instance()
        made = make("", leaving)
        made.submit(job(1, START))
        made.serve([Instance()])
        waiting = asyncio.ensure_future(made.wait_left(leaving))
        await asyncio.sleep(0)
        made.hurry()
        await waiting

    @in_a_loop
    async def test_joins(self, make):
        """A sequence that waits for a slot gets one of an instance that joins."""
        busy, joining = Instance(), Instance()
        made = make("oldest { max_candidate_sequences: 1 }", busy)
        waiting = job(2, START)
        made.submit(job(1, START))
        made.submit(waiting)
        made.serve([busy, joining])
        assert joining.batches == [[waiting]]


class TestRefusals:
    @in_a_loop
    async def test_no_sequence(self, make):
        """A request that belongs to no sequence is not queued."""
        made = make("", Instance())
        with pytest.raises(InferenceError, match="must specify the START flag"):
            made.submit(job(1))
        assert len(made) == 0

    @in_a_loop
    async def test_no_number(self, make):
        """A request that is refused for its id begins no sequence."""
        made = make(CONTROLS, Instance())
        with pytest.raises(InferenceError, match="data-type is 'BYTES', but model 'm' expects 'INT32'"):
            made.submit(job("a", START))
        assert repr(made._sequences) == "<Sequences [0 known, 0 in the backlog | 0 queued]>"

    @in_a_loop
    async def test_conflict(self, make, caplog):
        """A sequence that begins anew is logged."""
        made = make("", Instance())
        made.submit(job(7, START))
        assert caplog.text == ""
        made.submit(job(7, START))
        assert "sequence 7 for model 'm' has a conflict" in caplog.text


class TestInputs:
    @in_a_loop
    async def test_controls(self, make, memory):
        """A request has its control inputs behind its own; their memory goes with it."""
        made = make(CONTROLS, Instance(capacity=0))
        each = job(258, START)
        made.submit(each)
        assert [(name, datatype, shape) for name, datatype, shape, *_ in each.tensors] == [
            ("IN", "INT32", [1, 2]),
            ("S", "INT32", [1, 1]),
            ("R", "BOOL", [1, 1]),
            ("I", "INT32", [1, 1]),
        ]
        found = contents(memory, each)
        assert (found["S"], found["R"], found["I"]) == (b"\x03\0\0\0", b"\x01", b"\x02\x01\0\0")
        assert memory.live == 1
        each.free()
        assert memory.live == 0

    @in_a_loop
    async def test_padding(self, make, memory):
        """A row without a request is zeros, and not ready. Its response is dropped."""
        instance = Instance()
        made = make(CONTROLS, instance)
        strings = job(2, START, tensors=[("IN", "BYTES", [1, 2], 0, 99, 0, 0)])
        made.submit(job(1, START))
        made.submit(strings)
        padding, same = instance.batches[1]
        assert same is strings
        assert padding.is_padding
        assert not strings.is_padding
        assert (padding.id, padding.options) == ("", RequestOptions(requested_outputs=["OUT"]))
        found = contents(memory, padding)
        assert found == {"IN": bytes(8), "S": b"\x02\0\0\0", "R": b"\0", "I": bytes(4)}
        released = []
        response = InferResponse("m", 1, "", [], release=lambda: released.append(1))
        padding.respond(response, True)
        padding.respond(InferenceError("x"), True)
        assert released == [1]
        live = memory.live
        padding.free()
        assert memory.live == live - 1

    @in_a_loop
    async def test_padding_is_not_put_back(self, make, memory):
        """It is made anew when it is needed again."""
        instance = Instance()
        made = make(CONTROLS, instance)
        made.submit(job(1, START))
        second = job(2, START)
        made.submit(second)
        live = memory.live
        made.put_back(instance.batches.pop())
        assert memory.live == live
        padding, same = instance.batches.pop()
        assert padding.is_padding
        assert same is second
        made.reschedule(padding)
        assert memory.live == live - 1
        assert len(made) == 0

    @in_a_loop
    async def test_no_memory_for_padding(self, make, memory, monkeypatch):
        """A batch that cannot be padded fails."""
        statistics = ModelStatistics()
        instance = Instance(capacity=1)
        made = make(CONTROLS, instance, statistics=statistics)
        outcomes = []
        for each in (job(1, START), job(2, START, outcomes), job(3, START, outcomes)):
            made.submit(each)
        place = memory.place
        placed = []

        def full(request):
            if placed:
                raise InferenceError("no room", Code.UNAVAILABLE)
            placed.append(request)
            place(request)

        made.submit(job(4, START, outcomes))
        made.cancel(made._sequences._known[2].waiting[0])
        made.cancel(made._sequences._known[3].waiting[0])
        live = memory.live
        monkeypatch.setattr(memory, "place", full)
        instance.finish(made)
        assert [outcome.message for outcome in outcomes] == ["", "", "no room"]
        assert memory.live < live
        assert instance.batches == []
        assert statistics.failures[FailureReason.OTHER] == 1

    @in_a_loop
    async def test_states(self, make):
        """All requests of a sequence are given the same states, and START begins with new ones."""
        instance = Instance()
        made = make(STATE, instance)
        first, second, other, again = job(1, START), job(1, END), job(2, START), job(2, START)
        for each in (first, other):
            made.submit(each)
        first.states.update("B", "INT32", [1, 1], b"abcd")
        made.submit(second)
        made.submit(again)
        for _ in range(2):
            instance.finish(made)
        assert second.states is first.states
        assert second.tensors[1:] == [("A", "INT32", [1, 1], b"abcd", 4, 0, 0)]
        assert first.tensors[1:] == other.tensors[1:] == [("A", "INT32", [1, 1], bytes(4), 4, 0, 0)]
        assert [state.contents for state in second.states.inputs] == [b"abcd"]
        assert other.states.inputs == []  # its sequence has begun again
        assert again.states is not other.states

    @in_a_loop
    async def test_states_that_are_changed_in_place(self, memory, monkeypatch):
        """Each sequence has a copy of the initial state, in request memory. Without room for it its request fails."""
        first = memory.allocate(4, data=b"abcd")
        in_place = STATE.replace("}", "use_same_buffer_for_input_output: true }")
        spec = spec_of(f"sequence_batching {{ {in_place} }}")
        (state,) = spec.sequence_batching.states
        state = replace(state, initial=address(memory.region.number, first.offset))
        spec = replace(spec, sequence_batching=replace(spec.sequence_batching, states=(state,)))
        made, instance = create_scheduler(spec, lambda: None, ModelStatistics(), memory), Instance()
        made.serve([instance])
        outcomes = []
        one, two = job(1, START | END), job(2, START | END)
        made.submit(one)
        made.submit(two)
        assert [contents(memory, each)["A"] for each in (one, two)] == [b"abcd", b"abcd"]
        assert len({first.offset, one.tensors[1][3], two.tensors[1][3]}) == 3
        assert memory.live == 3
        instance.finish(made)
        instance.finish(made)
        assert memory.live == 1

        def full(size, data):
            raise InferenceError("no room", Code.UNAVAILABLE)

        monkeypatch.setattr(memory, "allocate", full)
        made.submit(job(3, START | END, outcomes))
        assert [outcome.message for outcome in outcomes] == ["no room"]

    @in_a_loop
    async def test_no_states(self, make):
        """Most models have none."""
        instance = Instance()
        each = job(1, START)
        make("", instance).submit(each)
        assert each.states is None


class TestAgain:
    @in_a_loop
    async def test_reschedule(self, make, memory):
        """A rescheduled request comes before the others of its sequence, and is not the first one any more."""
        instance = Instance()
        made = make(CONTROLS + STATE, instance)
        first, second = job(1, START), job(1)
        made.submit(first)
        made.submit(second)
        states = first.states
        first.continue_sequence()
        made.reschedule(first)
        assert instance.batches == [[first], [first]]
        assert contents(memory, first)["S"] == b"\x02\0\0\0"
        live = memory.live
        made.reschedule(first)
        assert (len(instance.batches), memory.live) == (3, live)
        assert first.states is states
        assert sorted(tensor[0] for tensor in first.tensors) == ["A", "I", "IN", "R", "S"]

    @in_a_loop
    async def test_own_sequences(self, make):
        """Requests without an id are sequences of their own where their model may execute them again."""
        instance = Instance()
        made = make("iterative_sequence: true " + STATE, instance)
        jobs = [job(0), job("")]
        for each in jobs:
            made.submit(each)
        assert len({each.sequence_id for each in jobs}) == 2
        assert all(each.is_start and each.sequence_id for each in jobs)
        instance.finish(made)
        with pytest.raises(InferenceError, match="must specify the START flag"):
            made.submit(job(jobs[0].sequence_id))

    @in_a_loop
    async def test_own_sequence_abandoned(self, make):
        """The model is told that it will not get a request again, whose client leaves while it runs or waits."""
        instance = Instance(capacity=1)
        made = make("iterative_sequence: true " + STATE, instance)
        runs, waits = job(0), job(0)
        made.submit(runs)
        runs.cancelled = True
        made.reschedule(runs)
        instance.capacity = 1
        made.submit(waits)
        made.reschedule(waits)
        made.cancel(waits)
        assert instance.dropped == [[runs.sequence_id], [waits.sequence_id]]

    @in_a_loop
    async def test_cancelled(self, make):
        """A cancelled request is not executed again."""
        statistics = ModelStatistics()
        instance = Instance()
        made = make("", instance, statistics=statistics)
        outcomes = []
        for give_back in (made.reschedule, lambda each: made.put_back([each])):
            each = job(1, START, outcomes)
            made.submit(each)
            each.cancelled = True
            give_back(each)
            assert outcomes.pop().code is Code.CANCELLED
        assert statistics.failures[FailureReason.CANCELED] == 2
        assert len(instance.batches) == 2

    @in_a_loop
    async def test_no_memory(self, make, memory, monkeypatch):
        """A request that cannot be given its control inputs again fails."""
        instance = Instance()
        made = make(CONTROLS, instance)
        outcomes = []
        each = job(1, START, outcomes)
        made.submit(each)

        def full(request):
            raise InferenceError("no room", Code.UNAVAILABLE)

        monkeypatch.setattr(memory, "place", full)
        made.reschedule(each)
        assert [outcome.message for outcome in outcomes] == ["no room"]


class TestEnds:
    @in_a_loop
    async def test_cancel(self, make):
        """All that waits of the sequence is cancelled."""
        statistics = ModelStatistics()
        made = make("", Instance(), statistics=statistics)
        outcomes = []
        jobs = [job(1, START, outcomes), job(1, 0, outcomes), job(1, 0, outcomes)]
        for each in jobs:
            made.submit(each)
        made.cancel(jobs[1])
        assert [outcome.code for outcome in outcomes] == [Code.CANCELLED] * 2
        assert statistics.failures[FailureReason.CANCELED] == 2
        made.cancel(jobs[0])
        assert len(outcomes) == 2

    @in_a_loop
    async def test_abandoned(self, make):
        """The instance is told which sequences of its end without END, by a cancellation or because they are idle."""
        instance = Instance()
        made = make("", instance, idle_us=1000)
        jobs = [job(1, START), job("two", START), job(1)]
        for each in jobs:
            made.submit(each)
        made.cancel(jobs[2])
        assert instance.dropped == [[1]]
        instance.has_dropped.clear()
        instance.finish(made)
        instance.finish(made)
        await instance.has_dropped.wait()
        assert instance.dropped == [[1], ["two"]]

    @in_a_loop
    async def test_fail_all(self, make):
        """All waiting requests fail, which ends the wait."""
        made = make("", Instance(capacity=0))
        outcomes = []
        made.submit(job(1, START, outcomes))
        made.submit(job(2, START, outcomes))
        waiting = asyncio.ensure_future(made.wait_empty(PATIENCE_S))
        await asyncio.sleep(0)
        failure = InferenceError("gone")
        made.fail_all(failure)
        assert outcomes == [failure, failure]
        await waiting

    @in_a_loop
    async def test_idle(self, make):
        """A slot whose sequence is idle for too long goes to the next one, without anybody asking."""
        instance = Instance()
        made = make("oldest { max_candidate_sequences: 1 }", instance, idle_us=1000)
        made.submit(job(1, START))
        second = job(2, START)
        made.submit(second)
        instance.executed.clear()
        instance.finish(made)
        assert instance.batches == []
        await instance.executed.wait()
        assert instance.batches == [[second]]

    @in_a_loop
    async def test_timeout(self, make):
        """A request that waits too long for a slot fails."""
        statistics = ModelStatistics()
        made = make("oldest { max_candidate_sequences: 1 }", Instance(capacity=0), statistics=statistics)
        told = asyncio.get_running_loop().create_future()
        made.submit(job(1, START))
        late = job(2, START, timeout_s=0.001)
        late.respond = lambda outcome, final: told.set_result(outcome)
        made.submit(late)
        outcome = await told
        assert outcome.message == "timeout of the corresponding sequence has been expired"
        assert outcome.code is Code.UNAVAILABLE
        assert statistics.failures[FailureReason.REJECTED] == 1

    @in_a_loop
    async def test_death(self, make):
        """Requests that wait for an instance that has died fail, unless they begin their sequence."""
        changes = []
        instances = [Instance(), Instance()]
        made = make("", *instances, on_change=lambda: changes.append(1))
        outcomes = []
        jobs = [job(1, START, outcomes), job(2, START), job(1, 0, outcomes)]
        for each in jobs:
            made.submit(each)
        instances[0].is_ready = False
        instances[0].capacity = 0
        made.executor_changed()
        assert changes == [1]
        assert [outcome.message for outcome in outcomes] == [
            "sequence 1 of model 'm' is lost with the instance that had it; it must be started again"
        ]
        # A request that the instance had not begun when it died is lost as well.
        made.put_back([jobs[0]])
        assert [outcome.code for outcome in outcomes] == [Code.UNAVAILABLE] * 2
        again = job(1, START)
        made.submit(again)
        assert instances[1].batches == [[jobs[1]], [again]]

    @in_a_loop
    async def test_death_before_it_began(self, make):
        """A sequence that had not begun begins on another instance."""
        instances = [Instance(capacity=0), Instance(capacity=0)]
        made = make("", *instances)
        first = job(1, START)
        made.submit(first)
        instances[0].is_ready = False
        instances[1].capacity = 1
        made.executor_changed()
        made.capacity_freed()
        assert instances[1].batches == [[first]]


class TestPreserveOrdering:
    """Two sequences of an instance, whose responses are made in the other order."""

    @pytest.mark.parametrize("ordered", [True, False])
    @in_a_loop
    async def test_one_instance(self, make, ordered):
        """A response waits for those of the requests that the instance got before, of any sequence."""
        instance = Instance()
        made = make(f"oldest {{ max_candidate_sequences: 2 preserve_ordering: {str(ordered).lower()} }}", instance)
        outcomes = []
        jobs = [job(id, START | END, outcomes) for id in (1, 2)]
        for each in jobs:
            made.submit(each)
        assert [each for batch in instance.batches for each in batch] == jobs
        for each, outcome in reversed(list(zip(jobs, "ab", strict=True))):
            each.free()
            each.respond(outcome, True)
        assert outcomes == (["a", "b"] if ordered else ["b", "a"])

    @in_a_loop
    async def test_two_instances(self, make):
        """The responses of different instances wait for nothing of each other."""
        instances = [Instance(), Instance()]
        made = make("oldest { max_candidate_sequences: 1 preserve_ordering: true }", *instances)
        outcomes = []
        jobs = [job(id, START | END, outcomes) for id in (1, 2)]
        for each in jobs:
            made.submit(each)
        assert [instance.batches for instance in instances] == [[[jobs[0]]], [[jobs[1]]]]
        for each, outcome in reversed(list(zip(jobs, "ab", strict=True))):
            each.free()
            each.respond(outcome, True)
        assert outcomes == ["b", "a"]

    @in_a_loop
    async def test_no_room(self, make, monkeypatch):
        """A batch that may not begin, because many responses are held, has no timer that goes off again and again."""
        monkeypatch.setattr(response_order, "HELD_MAX", 1)
        instance = Instance()
        made = make("oldest { max_candidate_sequences: 3 preserve_ordering: true }", instance)
        first, second, third = jobs = [job(id, START | END) for id in (1, 2, 3)]
        for each in jobs[:2]:
            made.submit(each)
        assert not made.has_full_order
        second.free()
        second.respond("b", True)
        assert made.has_full_order
        looks = []
        on_timer = type(made)._on_timer
        monkeypatch.setattr(type(made), "_on_timer", lambda self: looks.append(1) or on_timer(self))
        made.submit(third)
        await settle()
        assert len(looks) <= 1
        first.free()
        first.respond("a", True)
        assert not made.has_full_order
        assert [each for batch in instance.batches for each in batch] == jobs

    @pytest.mark.parametrize("again", ["put_back", "reschedule"])
    @in_a_loop
    async def test_first_begins_again(self, make, monkeypatch, again):
        """However many responses are held, the request whose turn it is begins again, after a crash or by its model."""
        monkeypatch.setattr(response_order, "HELD_MAX", 1)
        instance = Instance()
        made = make("oldest { max_candidate_sequences: 2 preserve_ordering: true }", instance)
        first, second = jobs = [job(id, START | END) for id in (1, 2)]
        for each in jobs:
            made.submit(each)
        second.free()
        second.respond("b", True)
        before = len(instance.batches)
        if again == "put_back":
            made.put_back([first])
        else:
            made.reschedule(first)
        assert instance.batches[before:] == [[first]]

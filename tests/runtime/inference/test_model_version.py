# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A model version over instances that only note their calls."""

import asyncio
import math
import os
from types import SimpleNamespace

import pytest

from pyruntime.runtime.gpus.tensor_places import TensorPlaces
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.statistics import FailureReason
from pyruntime.runtime.regions import ClientRegion
from pyruntime.runtime.requests.types import ClientContents, InferRequest, InputTensor, OutputPlace
from pyruntime.utils.addresses import address
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import MEMORY_GPU
from tests.patience import PATIENCE_S

from ..event_loops import settle
from ..model_specs import spec_from

CONFIG = (
    "name: 'm' max_batch_size: 4 input { name: 'IN' data_type: TYPE_FP32 dims: 2 } "
    "output { name: 'OUT' data_type: TYPE_FP32 dims: 2 } "
)


class Instance:
    """Stands for a PythonInstance."""

    def __init__(self, name="m_0", capacity=0):
        self.name = name
        self.capacity = capacity
        self.is_ready = self.is_idle = True
        self.down = ""
        self.batches = []
        self.cancelled = []
        self.checks = []
        self.stops = []
        self.kills = 0
        self.plain = None

    @property
    def inflight(self):
        """It stands for its batches, too."""
        return self

    def execute(self, batch):
        self.capacity -= 1
        self.batches.append(batch)
        for job in batch:
            job.instance = self

    def cancel(self, job):
        self.cancelled.append(job)

    def workers(self):
        return [self]

    def check_ready(self, call_back):
        self.checks.append(call_back)

    async def stop(self, timeout_s):
        self.stops.append(timeout_s)

    def kill(self):
        self.kills += 1


@pytest.fixture
def memory():
    made = RequestMemory("m", 1 << 16, 1 << 16)
    yield made
    made.close()


def model(memory, *instances, text="", lost=None, cache=None):
    spec = spec_from(CONFIG + text)
    losses = [] if lost is None else lost
    made = ModelVersion(spec, 3, memory, lambda which, reason: losses.append((which, reason)), cache=cache)
    made.serve(instances)
    return made


def into(outcomes):
    """A `respond` that notes the one outcome that it is called with."""

    def respond(outcome, final):
        assert final
        outcomes.append(outcome)

    return respond


def ignore(outcome, final):
    pass


def request(shape=(1, 2), id=""):
    return InferRequest("m", id=id, inputs=[InputTensor("IN", "FP32", list(shape), bytes(4 * shape[0] * shape[1]))])


def test_passive_instances_get_no_work(memory):
    """An instance of a passive group is loaded, and that is all."""
    passive, active = Instance("m_0_0", capacity=2), Instance("m_1_0", capacity=1)
    made = model(memory, passive, active, text="instance_group [ { passive: true }, { count: 1 } ]")
    made.infer(request(), ignore)
    made.infer(request(), ignore)
    assert passive.batches == []
    assert active.batches


class TestInfer:
    def test_goes_to_an_instance(self, memory):
        """A request that is right reaches an instance, its tensors in the request region."""
        instance = Instance(capacity=1)
        outcome = []
        model(memory, instance).infer(request((3, 2), id="7"), into(outcome))
        (((job,),)) = instance.batches
        assert (job.id, job.rows) == ("7", 3)
        assert job.tensors[0][3] >= 0
        assert memory.live == 1
        assert outcome == []
        job.free()
        assert memory.live == 0

    def test_refused_by_the_configuration(self, memory):
        """A request that is wrong is refused at once, counted, and holds no memory."""
        made = model(memory, Instance(capacity=1))
        outcome = []
        with pytest.raises(InferenceError) as caught:
            made.infer(request((5, 2)), into(outcome))
        assert caught.value.code is Code.INVALID_ARG
        assert outcome == []
        assert memory.live == 0
        assert made.statistics.failures[FailureReason.OTHER] == made.statistics.failure_count == 1

    def test_refused_by_the_queue(self, memory):
        """A full queue is UNAVAILABLE, with the request's id in the message."""
        made = model(memory, Instance(), text="dynamic_batching { default_queue_policy { max_queue_size: 1 } }")
        made.infer(request(), ignore)
        outcome = []
        with pytest.raises(InferenceError) as caught:
            made.infer(request(id="7"), into(outcome))
        assert caught.value.code is Code.UNAVAILABLE
        assert caught.value.message == "[request id: 7] Exceeds maximum queue size"
        assert outcome == []
        assert memory.live == 1
        assert made.statistics.failures[FailureReason.REJECTED] == made.statistics.failure_count == 1

    def test_traced_and_refused_by_the_queue(self, memory):
        """The trace of such a request ends there, because the request is not answered."""
        made = model(memory, Instance(), text="dynamic_batching { default_queue_policy { max_queue_size: 1 } }")
        made.infer(request(), ignore)
        job = made.accept(request(), ignore)
        told = []
        job.trace = SimpleNamespace(refused=told.append)
        with pytest.raises(InferenceError) as caught:
            made.start(job)
        assert told == [caught.value]

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("", 1),
            ("dynamic_batching { }", 1),
            ("dynamic_batching { default_queue_policy { allow_timeout_override: true } }", 1),
            ("dynamic_batching { default_queue_policy { default_timeout_microseconds: 9 } }", 1),
            (
                "dynamic_batching { default_queue_policy "
                "{ default_timeout_microseconds: 9000000 allow_timeout_override: true } }",
                0,
            ),
        ],
    )
    def test_a_timeout_without_effect_is_said_once(self, memory, caplog, text, told):
        async def test():
            made = model(memory, Instance(), text=text)
            for timeout_us in (0, 5_000_000, 5_000_000):
                wanted = request()
                wanted.timeout_us = timeout_us
                made.infer(wanted, ignore)

        asyncio.run(test())
        assert caplog.text.count("a request to model 'm' has a timeout, which does not limit how long it waits") == told

    def test_refused_by_its_sequence(self, memory):
        """A request that its sequence refuses is INVALID_ARG with Triton's message, and leaves nothing behind."""
        made = model(memory, Instance(), text="sequence_batching {}")
        job = made.accept(request(id="7"), ignore)
        told = []
        job.trace = SimpleNamespace(refused=told.append)
        with pytest.raises(InferenceError) as caught:
            made.start(job)
        assert caught.value.code is Code.INVALID_ARG
        assert caught.value.message == (
            "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
        )
        assert told == [caught.value]
        assert memory.live == 0
        assert made.statistics.failures[FailureReason.OTHER] == made.statistics.failure_count == 1

    def test_with_the_memory_of_a_client(self, memory):
        """The job says which regions it refers to, and keeps them: until its memory is free, and it is answered."""
        region = ClientRegion(os.memfd_create("a client's"))
        contents = ClientContents(region, address(region.number, 0), 8)
        made = request(id="7")
        made.inputs[0] = InputTensor("IN", "FP32", [1, 2], b"", contents.address, contents)
        made.output_places = {"OUT": OutputPlace("r", 0, 8, contents)}
        instance, outcome = Instance(capacity=1), []
        model(memory, instance).infer(made, into(outcome))
        (((job,),)) = instance.batches
        assert (job.regions, job.client.places) == ([region], made.output_places)
        assert job.tensors == [("IN", "FP32", [1, 2], contents.address, 8, 0, 0)]
        assert job.places == {"OUT": (contents.address, 8, 0, 0)}
        region.close()  # it is unregistered
        job.free()
        assert region.size() == 0
        job.respond(None, True)
        assert outcome == [None]
        with pytest.raises(OSError, match="Bad file descriptor"):
            region.size()

    def test_of_another_size_in_the_memory_of_a_client(self, memory):
        """An input must fill its shape, wherever it is."""
        region = ClientRegion(os.memfd_create("a client's"))
        made = request()
        made.inputs[0] = InputTensor("IN", "FP32", [0, 2], b"", 0, ClientContents(region, 0, 8))
        with pytest.raises(InferenceError, match="Expected 0, got 8"):
            model(memory, Instance(capacity=1)).infer(made, ignore)
        region.close()

    def test_refused_by_the_queue_with_the_memory_of_a_client(self, memory):
        """A request that the queue refuses is not answered, and releases the client's memory."""
        region = ClientRegion(os.memfd_create("a client's"))
        made = model(memory, Instance(), text="dynamic_batching { default_queue_policy { max_queue_size: 1 } }")
        made.infer(request(), ignore)
        refused = request()
        refused.output_places = {"OUT": OutputPlace("r", 0, 8, ClientContents(region, 0, 8))}
        with pytest.raises(InferenceError, match="Exceeds maximum queue size"):
            made.infer(refused, ignore)
        region.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            region.size()

    def test_refused_for_lack_of_memory(self, memory, monkeypatch):
        """Without request memory it is UNAVAILABLE."""

        def allocate(size, lead=0):
            raise InferenceError("no room", Code.UNAVAILABLE)

        monkeypatch.setattr(memory, "allocate", allocate)
        made = model(memory, Instance(capacity=1))
        with pytest.raises(InferenceError, match="no room"):
            made.infer(request(), ignore)
        assert made.statistics.failure_count == 1


class TestReady:
    def test_while_one_instance_is(self, memory):
        """One instance that takes requests is enough."""
        first, second = Instance(), Instance("m_1")
        made = model(memory, first, second)
        assert made.is_ready
        first.is_ready = False
        assert made.is_ready
        second.is_ready = False
        assert not made.is_ready

    def test_without_instances(self, memory):
        """Without instances a model is not ready."""
        assert not model(memory).is_ready


class TestCheckReady:
    """Readiness, with the model's own answer."""

    def check(self, made):
        told = []
        made.check_ready(told.append)
        return told

    def test_without_instances(self, memory):
        """A model without instances is not ready."""
        assert self.check(model(memory)) == [False]

    def test_one_that_is_down(self, memory):
        """Only those that take requests are asked; one is enough."""
        first, second = Instance(), Instance("m_1")
        first.is_ready = False
        told = self.check(model(memory, first, second))
        assert first.checks == []
        second.checks.pop()(True)
        assert told == [True]

    def test_none_is_ready(self, memory):
        """Without a ready instance the model is not ready, and is not asked."""
        instance = Instance()
        instance.is_ready = False
        assert self.check(model(memory, instance)) == [False]
        assert instance.checks == []

    @pytest.mark.parametrize("answers", [(True, True), (True, False), (False, True), (False, False)])
    def test_all_have_to_be(self, memory, answers):
        """The model is ready if all instances are, and the answer waits for the last of them."""
        instances = [Instance(), Instance("m_1")]
        told = self.check(model(memory, *instances))
        instances[1].checks.pop()(answers[1])
        assert told == []
        instances[0].checks.pop()(answers[0])
        assert told == [all(answers)]

    def test_at_once(self, memory):
        """Models that have no is_ready answer at once."""
        instances = [Instance(), Instance("m_1")]
        for instance in instances:
            instance.check_ready = lambda call_back: call_back(True)
        assert self.check(model(memory, *instances)) == [True]


class TestCancel:
    def test_of_one_that_queues(self, memory):
        """It ends, and its memory is free."""
        made = model(memory, Instance())
        outcome = []
        job = made.infer(request(), into(outcome))
        made.cancel(job)
        made.cancel(job)
        assert [failure.code for failure in outcome] == [Code.CANCELLED]
        assert memory.live == 0
        assert len(made.scheduler) == 0

    def test_of_one_that_runs(self, memory):
        """Its instance gets the cancellation, and the request goes on."""
        instance = Instance(capacity=1)
        made = model(memory, instance)
        outcome = []
        job = made.infer(request(), into(outcome))
        made.cancel(job)
        assert instance.cancelled == [job]
        assert outcome == []
        job.free()


class TestLoss:
    def test_of_one_of_two(self, memory):
        """A model goes on with the instances that are left, and says which are not."""
        first, second = Instance(), Instance("m_1")
        lost = []
        made = model(memory, first, second, lost=lost)
        assert made.problem == ""
        first.down = "it died"
        made.scheduler.executor_changed()
        assert made.problem == "instance m_0 is down: it died"
        assert lost == []

    def test_of_the_last(self, memory):
        """Without instances every waiting request fails, and the owner is called once."""
        instance = Instance()
        lost, outcome = [], []
        made = model(memory, instance, lost=lost)
        made.infer(request(), into(outcome))
        instance.down = "it died"
        made.scheduler.executor_changed()
        made.scheduler.executor_changed()
        assert lost == [(made, "instance m_0 is down: it died")]
        assert [failure.message for failure in outcome] == ["Stub process 'm_0' is not healthy. It is down: it died"]
        assert memory.live == 0

    def test_and_return(self, memory):
        """With an instance that is ready again the model serves again, and says so once."""
        instance = Instance()
        lost, outcome = [], []
        made = model(memory, instance, lost=lost)
        for _ in range(2):
            instance.down = "it died"
            made.scheduler.executor_changed()
            with pytest.raises(InferenceError, match="It is down: it died"):
                made.infer(request(), into(outcome))
            instance.down = ""
            made.scheduler.executor_changed()
            made.scheduler.executor_changed()
            made.check_serving()
            assert lost == [(made, "instance m_0 is down: it died"), (made, "")]
            lost.clear()
        assert outcome == []

    def test_requests_after_it(self, memory):
        """A request that comes after the loss fails instead of waiting."""
        instance = Instance()
        made = model(memory, instance)
        instance.down = "it died"
        made.scheduler.executor_changed()
        outcome = []
        try:
            made.infer(request(), into(outcome))
        except InferenceError as failure:
            outcome.append(failure)
        assert [type(each) for each in outcome] == [InferenceError]
        assert memory.live == 0

    def test_before_it_serves(self, memory):
        """A change before there are instances is no loss."""
        lost = []
        model(memory, lost=lost).scheduler.executor_changed()
        assert lost == []


class TestExchange:
    def spec(self, count):
        return spec_from(CONFIG + f"instance_group [ {{ count: {count} }} ]")

    def test_instances_join_and_leave(self, memory):
        """Those that stay are left alone; a new one gets what waits; one that leaves gets nothing, and is stopped."""

        async def run():
            staying, leaving, new = Instance("m_0_0"), Instance("m_0_1"), Instance("m_0_2", capacity=1)
            made = model(memory, staying, leaving, text="instance_group [ { count: 2 } ]")
            job = made.infer(request(), ignore)
            spec = self.spec(2)
            assert made.exchange(spec, [staying, new]) == [leaving]
            assert made.spec is spec
            assert (made.instances, made.leaving) == ([staying, new], [leaving])
            assert new.batches == [[job]]
            assert (staying.stops, leaving.stops) == ([], [])
            await made.release(leaving, 7)
            assert (staying.stops, leaving.stops) == ([], [7])
            assert made.leaving == []

        asyncio.run(run())

    def test_passive_ones(self, memory):
        """A new instance of a passive group gets no work."""
        active, passive = Instance("m_0_0"), Instance("m_1_0", capacity=1)
        made = model(memory, active, text="instance_group [ { } ]")
        made.infer(request(), ignore)
        made.exchange(spec_from(CONFIG + "instance_group [ { }, { passive: true } ]"), [active, passive])
        assert passive.batches == []

    def test_brings_a_lost_model_back(self, memory):
        """If the last instance went down meanwhile, the new ones serve."""
        lost = []
        old, new = Instance("m_0_0"), Instance("m_0_1")
        made = model(memory, old, lost=lost)
        old.down = "it died"
        made.scheduler.executor_changed()
        made.exchange(self.spec(2), [old, new])
        assert lost == [(made, "instance m_0_0 is down: it died"), (made, "")]
        made.check_serving()

    def test_stop_waits_for_what_leaves(self):
        """A version ends with its instances that leave; sequences on them are not waited for."""

        async def run():
            memory = RequestMemory("m", 1 << 16, 1 << 16)
            leaving, staying = Instance("m_0_0", capacity=1), Instance("m_0_1")
            made = model(memory, leaving, text="sequence_batching {}")
            first = request()
            first.sequence_id, first.sequence_start = 7, True
            made.infer(first, ignore)
            made.exchange(self.spec(1), [staying])
            assert made.workers == [staying, leaving]
            release = asyncio.ensure_future(made.release(leaving, 5))
            await asyncio.sleep(0)
            assert leaving.stops == []
            await made.stop(PATIENCE_S)
            assert release.done()
            assert (len(leaving.stops), len(staying.stops)) == (1, 1)

        asyncio.run(run())

    def test_stop_kills_what_leaves(self):
        """An instance that leaves has no more time than the others when the version ends."""

        async def run():
            memory = RequestMemory("m", 1 << 16, 1 << 16)
            leaving, staying = Instance("m_0_0"), Instance("m_0_1")
            made = model(memory, leaving)
            killed = asyncio.Event()
            leaving.kill = killed.set

            async def stop(timeout_s):
                await killed.wait()

            leaving.stop = stop
            made.exchange(self.spec(1), [staying])
            release = asyncio.ensure_future(made.release(leaving, PATIENCE_S))
            await asyncio.sleep(0)
            await made.stop(0)
            await release
            assert killed.is_set()

        asyncio.run(run())

    def test_gpus(self, memory):
        """Tensors may lie on a GPU while all instances are on that one, also after they were elsewhere."""

        def spec(*gpus):
            return spec_from(CONFIG + f"instance_group [ {{ kind: KIND_GPU gpus: {list(gpus)} }} ]", gpus=(0, 1))

        made = model(memory, Instance())
        made.spec = spec(0)
        assert made.on_gpus is None
        made.share_gpu()
        for gpus in ((0, 1), (1,), (0,)):
            made.exchange(spec(*gpus), [Instance()])
            found = None if made.on_gpus is None else dict(made.on_gpus.outputs)
            assert found == (None if len(gpus) > 1 else {"OUT": (0, 0, MEMORY_GPU, gpus[0])})

    def test_native_instances(self, memory):
        """Instances that share nothing do not begin to when they are exchanged."""
        made = model(memory, Instance())
        made.exchange(spec_from(CONFIG + "instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]", gpus=(0,)), [Instance()])
        assert made.on_gpus is None

    def test_kill(self, memory):
        """Instances that leave are killed with the others."""
        leaving, staying = Instance("m_0_0"), Instance("m_0_1")
        made = model(memory, leaving)
        made.exchange(self.spec(1), [staying])
        made.kill()
        assert (leaving.kills, staying.kills) == (1, 1)


class TestStop:
    def test_stops_all_and_fails_what_waits(self):
        """All instances are stopped, waiting requests fail, and the memory is unmapped."""
        memory = RequestMemory("m", 1 << 16, 1 << 16)
        instances = [Instance(), Instance("m_1")]
        made = model(memory, *instances)
        outcome = []
        made.infer(request(), into(outcome))
        asyncio.run(made.stop(0))
        assert [instance.stops for instance in instances] == [[0], [0]]
        assert [(failure.message, failure.code) for failure in outcome] == [
            ("Model 'm' was unloaded", Code.UNAVAILABLE)
        ]
        assert memory.region.fileno() == -1

    def test_executes_what_waits_first(self):
        """Accepted requests are executed within the time limit before instances are stopped."""

        async def run():
            memory = RequestMemory("m", 1 << 16, 1 << 16)
            instance = Instance()
            made = model(memory, instance)
            outcomes = []
            made.infer(request(), into(outcomes))
            stopping = asyncio.ensure_future(made.stop(PATIENCE_S))
            await asyncio.sleep(0)
            assert instance.stops == []
            instance.capacity = 1
            made.scheduler.capacity_freed()
            await stopping
            assert len(instance.batches) == 1
            assert outcomes == []
            assert 0 < instance.stops[0] <= PATIENCE_S

        asyncio.run(run())

    def test_waits_for_what_an_instance_answered_at_last(self):
        """The version's memory stays until all outputs are there, which may be copied when the instances have ended."""

        async def run():
            memory = RequestMemory("m", 1 << 16, 1 << 16)
            instance = Instance()
            made = model(memory, instance)
            ended = asyncio.Event()

            async def stop(timeout_s):
                made.expect()
                ended.set()

            instance.stop = stop
            stopping = asyncio.ensure_future(made.stop(PATIENCE_S))
            await ended.wait()
            await settle()
            assert not memory.region.is_closed
            made.arrived()
            await stopping
            assert memory.region.is_closed

        asyncio.run(run())

    def test_waits_for_nothing_that_cannot_come(self):
        """Without a ready instance the stop does not wait for queued requests."""
        memory = RequestMemory("m", 1 << 16, 1 << 16)
        instance = Instance()
        made = model(memory, instance)
        outcomes = []
        made.infer(request(), into(outcomes))
        instance.is_ready = False
        asyncio.run(made.stop(math.inf))
        assert instance.stops == [math.inf]
        assert [failure.code for failure in outcomes] == [Code.UNAVAILABLE]

    def test_requests_after_it(self):
        """A request that was being read while its model stopped is refused, like any to a model that is not there."""
        memory = RequestMemory("m", 1 << 16, 1 << 16)
        made = model(memory, Instance())
        asyncio.run(made.stop(0))
        with pytest.raises(InferenceError):
            made.infer(request(), ignore)

    def test_kill(self, memory):
        """All instances end at once."""
        instances = [Instance(), Instance("m_1")]
        model(memory, *instances).kill()
        assert [instance.kills for instance in instances] == [1, 1]


def test_repr(memory):
    """A model version shows what waits."""
    assert repr(model(memory, Instance())) == "<ModelVersion m 3 <Scheduler m [0 queued | 1 instances]>>"


class TestPlain:
    """Whether instances read plain requests by themselves."""

    def reading(self, name="m_0"):
        instance = Instance(name)
        instance.plain = instance
        return instance

    def test_active_instances(self, memory):
        """Only active instances matter."""
        text = "instance_group [ { passive: true }, { count: 1 } ]"
        assert not model(memory, self.reading("m_0_0"), Instance("m_1_0"), text=text).reads_plain
        assert model(memory, Instance("m_0_0"), self.reading("m_1_0"), text=text).reads_plain

    def test_a_cache(self, memory):
        """Requests to a model with a response cache are looked up first."""
        assert model(memory, self.reading()).reads_plain
        assert not model(memory, self.reading(), cache=SimpleNamespace(answers=None)).reads_plain

    def test_no_instance(self, memory):
        """Without instances no request is read."""
        assert not model(memory).reads_plain

    def test_tensors_of_a_cache(self, memory):
        """A model with a response cache has its tensors in main memory."""
        made = model(memory, cache=SimpleNamespace(answers=None))
        made.leave_on_gpus(lambda: TensorPlaces({}, {}))
        made.review_places()
        assert made.on_gpus is None

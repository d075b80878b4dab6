# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests to ensembles, with models that answer when and how the test wants."""

import asyncio
import gc
from dataclasses import replace
from operator import eq
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.calls.call_request import ValidatedSignatures
from pyruntime.runtime.ensembles.ensemble import Ensemble
from pyruntime.runtime.ensembles.executor import EnsembleRequests
from pyruntime.runtime.ensembles.step_times import STEP_TIMES, decode_step_times
from pyruntime.runtime.execution.deadlock import FREE
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.observe.statistics import FailureReason, ModelStatistics
from pyruntime.runtime.requests.types import InferResponse, KeptOutputs, OnGpu, OutputTensor
from pyruntime.runtime.scheduling.scheduler import Scheduler
from pyruntime.utils.addresses import address
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import MEMORY_CPU, MEMORY_GPU, RequestOptions

from ..model_specs import spec_from
from .graphs import Ensemble as Graphs
from .graphs import Node, ensembles

# A test that waits for this long waits for ever: it fails rather than hangs.
PATIENCE_S = 60
GONE = InferenceError("gone", Code.UNAVAILABLE)


class Region:
    """A region that counts its uses."""

    def __init__(self, number):
        self.number = number
        self.view = memoryview(bytes(64))
        self.uses = 0

    def count_on(self):
        self.uses += 1

    def close(self):
        self.uses -= 1
        assert self.uses >= 0


class Slot:
    """Memory of the request, which is freed once."""

    def __init__(self):
        self.freed = 0

    def free(self):
        self.freed += 1


class Model:
    """The model of a step. It takes jobs, and refuses the next one if `refuses`."""

    version = 1
    memory = None
    is_ready = True
    on_gpus = None

    def __init__(self, world, node, spec, region):
        self.world = world
        self.node = node
        self.spec = spec
        self.region = region
        self.validated = ValidatedSignatures()
        self.workers = [FREE]
        self.is_limited = False
        self.pins = 0
        self.refuses = False
        # Its memory on a GPU.
        self.chunk = None

    def expect(self):
        self.pins += 1

    def arrived(self):
        self.pins -= 1
        assert self.pins >= 0

    def start(self, job):
        if self.refuses:
            self.refuses = False
            job.free()
            raise InferenceError("Exceeds maximum queue size", Code.UNAVAILABLE)
        reads = {} if self.on_gpus is None else self.on_gpus.reads
        for name, _, _, _, _, kind, device in job.tensors:
            assert kind != MEMORY_GPU or reads.get(name) == device, "it lies where the model does not read it"
        self.world.open.append([self, job, 0])

    def cancel(self, job):
        job.cancelled = True


class World:
    """One ensemble and its models. `open` are the jobs of steps: the model, the job, and its responses so far.

    With `keeps` a model answers with the same list of outputs each time. With `frees_late` it frees the inputs only
    after its response, as executors do.
    """

    def __init__(self, graphs, limit=0):
        self.keeps = self.frees_late = False
        self.kept = {}
        self.open = []
        self.answers = []
        self.responses = 0
        self.released = 0
        self.models = {}
        for index, node in enumerate(graphs.nodes):
            self.models[f"m{index}"] = Model(self, node, node.model(index), Region(index + 2))
        spec = graphs.spec()
        spec = replace(
            spec,
            decoupled=any(node.responses is not None for node in graphs.nodes),
            ensemble=replace(spec.ensemble, max_inflight_requests=limit),
        )
        self.memory = type("Memory", (), {"region": Region(1)})()
        self.statistics = ModelStatistics()
        self.peers = SimpleNamespace(reaches=eq)
        made = Ensemble(
            spec,
            1,
            graphs.graph(),
            self.memory,
            self.statistics,
            lambda name, _: self.models[name],
            None,
            self.peers,
        )
        self.ensemble = made
        self.requests = EnsembleRequests(made, self)
        self.graphs = graphs
        self.jobs = []

    def capacity_freed(self):
        pass

    def request(self, priority=0, options=None, memory=None, places=None):
        """`memory` are regions on GPUs in which inputs lie, by their names; outputs at `places` may stay there."""
        slot = Slot()
        answers = []
        tensors = [(name, "INT8", [1], 0, 1, MEMORY_CPU, 0) for name in sorted(self.graphs.given)]
        if memory is not None:
            tensors = [
                (*each[:3], address(memory[each[0]].number, 0), 1, MEMORY_GPU, memory[each[0]].gpu.ordinal)
                if each[0] in memory
                else each
                for each in tensors
            ]
        options = options or RequestOptions(requested_outputs=self.graphs.requested)

        def respond(outcome, final):
            assert not any(each[1] for each in answers), "nothing follows the last response"
            answers.append((outcome, final))
            if isinstance(outcome, InferResponse):
                outcome.take()
                outcome.release()

        job = Job("7", options, tensors, 1, None, [slot], respond, 0)
        job.priority = priority
        job.places = places
        job.regions = list((memory or {}).values())
        self.jobs.append((job, slot, answers))
        self.requests.execute([job])
        return job

    def answer(self, index, failure=None, **parameters):
        """A model answers one of its jobs: with its next response, with an error, or with the end."""
        each = self.open[index]
        model, job, sent = each
        node = model.node
        if job.cancelled:
            failure = InferenceError("", Code.CANCELLED)
        if failure is not None or node.responses == sent:
            self.open.remove(each)
            job.free()
            job.respond(failure, True)
            return
        each[2] += 1
        if node.responses is None:
            self.open.remove(each)
            if not self.frees_late:
                job.free()
        outputs = [
            self.output(f"o{n}", model, job) for n, tensor in enumerate(node.writes) if tensor not in node.absent
        ]
        regions = (model.region,) if model.chunk is None else (model.region, model.chunk)
        self.responses += 1
        if self.keeps and not job.places:
            outputs = self.kept.setdefault(model.spec.name, KeptOutputs(outputs))

        def release():
            self.released += 1

        job.respond(
            InferResponse(model.spec.name, 1, "7", outputs, parameters, release=release, regions=regions),
            node.responses is None,
        )
        if node.responses is None and self.frees_late:
            job.free()

    def output(self, name, model, job):
        """An output: in the model's memory on a GPU, if it may stay there."""
        if job.places and name in job.places:
            return OutputTensor(name, "INT8", [1], b"", address(model.chunk.number, 0), OnGpu(model.chunk, 1))
        return OutputTensor(name, "INT8", [1], memoryview(bytearray(b"x")), address(model.region.number, 0))

    def act(self, action, draw):
        """Do what an example says, if it is possible now."""
        if action == "cancel":
            self.requests.cancel(draw(st.sampled_from(self.jobs))[0])
        elif action == "give up":
            self.requests.give_up(GONE)
        elif action == "refuse":
            draw(st.sampled_from(list(self.models.values()))).refuses = True
        elif self.open:
            index = draw(st.integers(0, len(self.open) - 1))
            self.answer(index, InferenceError("no") if action == "fail" else None)

    def check_over(self):
        """Every request is answered to its end, and all that was held is released, once."""
        assert len(self.requests) == 0
        assert self.released == self.responses
        assert all(model.pins == 0 and model.region.uses == 0 for model in self.models.values())
        assert self.memory.region.uses == 0
        for _, slot, answers in self.jobs:
            assert slot.freed == 1
            assert [final for _, final in answers].count(True) == 1
        statistics = self.statistics
        assert statistics.success_count + statistics.failure_count == len(self.jobs)
        if self.ensemble.credits is not None:
            assert "[0 taken, 0 waiting]" in repr(self.ensemble.credits)


@given(ensembles(), st.integers(0, 2), st.data())
def test_whatever_happens(graphs, limit, data):
    """Steps answer, fail and refuse in any order, and requests are cancelled and given up: nothing is left."""
    world = World(graphs, limit)
    world.keeps, world.frees_late = data.draw(st.booleans()), data.draw(st.booleans())
    for _ in range(data.draw(st.integers(1, 3))):
        world.request()
    for action in data.draw(st.lists(st.sampled_from(["answer"] * 6 + ["fail", "refuse", "cancel", "give up", "new"]))):
        if action == "new":
            world.request()
        else:
            world.act(action, data.draw)
    while world.open:
        world.answer(data.draw(st.integers(0, len(world.open) - 1)))
    world.check_over()


CHAIN = (Node([("in", False)], ["a"]), Node([("a", False)], ["out"]))


def chain(*nodes, limit=0):
    return World(Graphs(["in"], {"in"}, list(nodes or CHAIN), ["out"], set(), ["out"]), limit)


def answers_of(world, index=0):
    return world.jobs[index][2]


def test_first_failure_counts():
    """A step that fails ends the request with its code; the text names the step."""
    world = chain()
    world.request()
    world.answer(0, InferenceError("no", Code.UNSUPPORTED))
    ((failure, final),) = answers_of(world)
    assert (failure.message, failure.code, final) == (
        "in ensemble 'e', no (step 0, model 'm0')",
        Code.UNSUPPORTED,
        True,
    )
    world.check_over()


@pytest.mark.parametrize("index", [0, 1])
def test_timeout_in_the_queue_of_a_step(index):
    """A request may shorten the time that its steps wait; the one that waits too long ends it, and is named."""

    async def run():
        world = chain()
        statistics = ModelStatistics()
        policy = "default_timeout_microseconds: 600000000 allow_timeout_override: true"
        batching = f"max_batch_size: 1 dynamic_batching {{ default_queue_policy {{ {policy} }} }}"
        scheduler = Scheduler(spec_from(batching, f"m{index}"), lambda: None, statistics)
        busy = SimpleNamespace(capacity=0, is_idle=False)
        busy.inflight = busy
        scheduler.serve([busy])
        world.models[f"m{index}"].start = scheduler.submit
        world.request(options=RequestOptions(requested_outputs=["out"], timeout_us=1000))
        for _ in range(index):
            world.answer(0)
        await scheduler.wait_empty(PATIENCE_S)
        ((failure, final),) = answers_of(world)
        assert (failure.message, failure.code, final) == (
            f"in ensemble 'e', Request timeout expired (step {index}, model 'm{index}')",
            Code.UNAVAILABLE,
            True,
        )
        assert statistics.failures[FailureReason.REJECTED] == 1
        world.check_over()

    asyncio.run(run())


def test_priority():
    """Each step queues in the priority level of the request, also if a call like it is known already."""
    world = chain()
    for level in (3, 1, 2):
        world.request(level)
        for _ in CHAIN:
            ((_, job, _),) = world.open
            assert job.priority == level
            world.answer(0)
    world.check_over()


JOIN = (CHAIN[0], Node([("in", False)], ["b"]), Node([("a", False), ("b", False)], ["out"]))
THREE = (*CHAIN[:1], Node([("a", False)], ["b"]), Node([("b", False)], ["out"]))


def test_sequence_of_a_step():
    """What a step says of the sequence holds for all steps behind it, and for the client."""
    world = chain(*THREE)
    for parameters, expected in (({}, (0, 0)), ({"sequence_id": 9, "sequence_end": True, "other": 1}, (9, 2))):
        world.request()
        world.answer(0, **parameters)
        for _ in THREE[1:]:
            ((_, job, _),) = world.open
            assert (job.options.correlation_id, job.options.flags) == expected
            world.answer(0)
        ((response, _),) = answers_of(world, -1)
        assert response.parameters == {
            "sequence_id": expected[0],
            "sequence_start": False,
            "sequence_end": bool(expected[1]),
        }
    world.check_over()


def test_wrong_sequence_of_a_step():
    """A parameter of a wrong type fails the request, and names the step."""
    world = chain()
    world.request()
    world.answer(0, sequence_start=1)
    ((failure, final),) = answers_of(world)
    assert (failure.code, final) == (Code.INVALID_ARG, True)
    assert "expect parameter 'sequence_start' to be TRITONSERVER_PARAMETER_BOOL" in failure.message
    assert "model 'm0'" in failure.message
    world.check_over()


def test_sequences_that_contradict(caplog):
    """Of two steps that say different things the first counts, in the order of the inputs; the log says so.

    A step that says nothing passes on what the request says.
    """
    world = chain(*JOIN)
    for first, second, expected in ((3, 3, 3), (3, 4, 3), (4, 3, 4), (None, 4, 0), (4, None, 4), (None, None, 0)):
        caplog.clear()
        world.request()
        said_by = {"m0": first, "m1": second}
        for _ in said_by:
            value = said_by[world.open[0][0].spec.name]
            world.answer(0, **({} if value is None else {"sequence_id": value}))
        ((_, job, _),) = world.open
        assert job.options.correlation_id == expected
        said = [line for line in caplog.messages if "Different set of response parameters are set for 'm2'" in line]
        assert len(said) == (first != second)
        world.answer(0)
    world.check_over()


def test_step_that_is_refused():
    """So does a step whose model does not take the request."""
    world = chain()
    world.models["m1"].refuses = True
    world.request()
    world.answer(0)
    ((failure, _),) = answers_of(world)
    assert failure.message == "in ensemble 'e', Exceeds maximum queue size (step 1, model 'm1')"
    world.check_over()


def test_cancelled_while_it_waits_for_a_credit():
    """A request leaves the queue of a step at once when it is cancelled."""
    world = chain(limit=1)
    first, second = world.request(), world.request()
    assert len(world.open) == 1
    world.requests.cancel(second)
    assert answers_of(world, 1)[0][0].code is Code.CANCELLED
    world.requests.cancel(first)
    world.answer(0)
    world.check_over()


def test_credits_go_on():
    """The next start has the credit as soon as the one before has ended."""
    world = chain(limit=1)
    for _ in range(3):
        world.request()
    while world.open:
        assert len(world.open) <= 2  # one for each step
        world.answer(0)
    assert [len(answers) for _, _, answers in world.jobs] == [1, 1, 1]
    world.check_over()


def test_step_times_are_in_order():
    """The time of a step ends before the next one begins, although that is started before times are counted."""
    world = chain()
    world.request()
    request = next(iter(world.requests._requests.values()))
    request._times = []
    request.job.respond = lambda outcome, final: answers_of(world).append((outcome, final))
    world.answer(0)
    world.answer(0)
    ((response, _),) = answers_of(world)
    first, second = decode_step_times(response.parameters[STEP_TIMES])
    assert first.end_us <= second.start_us


def test_slow_client():
    """A decoupled step gets no credit for a response before the client has taken what became of it."""
    world = chain(Node([("in", False)], ["a"], responses=2), CHAIN[1])
    kept = []
    world.request()
    request = next(iter(world.requests._requests.values()))
    request.job.respond = lambda outcome, final: kept.append(outcome)
    world.answer(0)
    world.answer(1)
    assert (len(kept), world.released) == (1, 0)
    kept[0].take()
    assert world.released == 1
    kept[0].release()
    assert world.released == 2
    request.give_up(GONE)
    while world.open:
        world.answer(0)


def test_model_that_is_not_there():
    """A request to an ensemble whose model is gone fails with the reason."""
    world = chain()

    def find(name, version):
        raise InferenceError(f"Request for unknown model: '{name}' is not found", Code.NOT_FOUND)

    world.ensemble.find = find
    world.request()
    ((failure, _),) = answers_of(world)
    assert failure.message == "in ensemble 'e', Request for unknown model: 'm1' is not found"
    assert not world.ensemble.is_step_ready(world.ensemble.graph.steps[0])
    world.check_over()


@pytest.mark.parametrize("responses", [0, 3])
def test_nothing_to_send(responses):
    """A step that was not decoupled when the ensemble was loaded, and sends nothing, or more than one response."""
    world = chain(CHAIN[0], CHAIN[1])
    world.request()
    ((model, _, _),) = world.open
    model.node.responses = responses
    while world.open:
        world.answer(0)
    ((outcome, final),) = answers_of(world)
    assert final
    if not responses:
        assert outcome.code is Code.INVALID_ARG
        assert "unexpected deadlock, at least one output is not set" in outcome.message
    model.node.responses = None
    world.check_over()


def own_garbage():
    """Collects garbage and returns what of it is of this project.

    Threads of libraries, and finalizers that an earlier collection ran, leave garbage of their own at any time.
    """
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return [
            each for each in gc.garbage if str(getattr(each, "__module__", "")).startswith(("pyruntime.", __name__))
        ]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.mark.parametrize("failure", [None, InferenceError("no")])
def test_no_garbage(failure):
    """What a request was made of is freed without the garbage collector, which would cost every request."""
    world = chain()
    gc.collect()
    gc.disable()
    try:
        world.request()
        while world.open:
            world.answer(0, failure)
        world.check_over()
        world.jobs.clear()
        assert own_garbage() == []
        made = InferenceError("a cycle")
        made.cycle = made
        del made
        assert [str(each) for each in own_garbage()] == ["a cycle"]
    finally:
        gc.enable()


STREAM = Node([("in", False)], ["a"], responses=2)


def test_failure_behind_a_stream():
    """A decoupled step is cancelled when a step behind it fails, and what it has sent is released."""
    world = chain(STREAM, CHAIN[1])
    world.request()
    world.answer(0)
    world.answer(0)
    assert [job.cancelled for _, job, _ in world.open] == [False] * 3
    world.answer(2, InferenceError("no"))
    assert [(model.spec.name, job.cancelled) for model, job, _ in world.open] == [("m0", True), ("m1", False)]
    while world.open:
        world.answer(0)
    world.check_over()


def test_failure_behind_a_stream_that_waits():
    """A decoupled step gets all its credit back when a step behind it fails: it may wait for that before it ends."""
    world = chain(STREAM, CHAIN[1])
    world.request()
    world.answer(0)
    world.answer(0)
    world.answer(1, InferenceError("no"))
    assert world.released == 1
    world.answer(1)
    assert [model.spec.name for model, _, _ in world.open] == ["m0"]
    assert world.released == world.responses == 3
    world.answer(0)
    world.check_over()


def test_given_up_while_a_step_queues():
    """A decoupled step that ends as soon as it is cancelled ends a request that is given up, once."""
    world = chain(STREAM, CHAIN[1])
    world.request()

    def cancel(job):
        job.cancelled = True
        world.answer(0)

    world.models["m0"].cancel = cancel
    world.requests.give_up(GONE)
    ((failure, final),) = answers_of(world)
    assert (failure, final) == (GONE, True)
    world.check_over()


def test_failure_of_one_of_two_first_steps():
    """A step that was due at the same time as one that is refused is not started."""
    world = chain(CHAIN[0], Node([("in", False)], ["b"]), Node([("a", False), ("b", False)], ["out"]))
    refused, other = [step.model for step in world.ensemble.graph.plan(["out"]).steps.values()][-2:]
    for name in (refused, other):
        world.models[name].refuses = True
    world.request()
    assert sum(model.refuses for model in world.models.values()) == 1
    assert world.open == []
    world.check_over()


def inputs_of(world, index):
    """Where the inputs of a step that is under way are, and the regions that it refers to."""
    _, job, _ = world.open[index]
    assert job.is_call
    return [at for _, _, _, at, _, _, _ in job.tensors], list(job.regions)


def test_kept_outputs_of_one_model():
    """Two steps that have one model, of which each answers when its input is there: each output has its own name."""
    nodes = [Node([("x", False)], ["A"]), Node([("y", False)], ["B"])]
    world = World(Graphs(["x", "y"], {"x", "y"}, nodes, ["A", "B"], {"A", "B"}, ["A", "B"]))
    world.keeps = True
    world.models["m1"].spec, world.models["m1"].region = world.models["m0"].spec, world.models["m0"].region
    for given_input, output in (("x", "A"), ("y", "B"), ("x", "A")):
        world.graphs.given = {given_input}
        world.request()
        world.answer(0)
        assert [each.name for each in answers_of(world, -1)[0][0].outputs] == [output]
    world.check_over()


def test_kept_options():
    """A step whose inputs are described as before has the same options, as long as the request has."""
    world = chain(CHAIN[0], CHAIN[1])
    world.keeps = True
    seen = []
    for timeout_us in (0, 5):
        options = RequestOptions(requested_outputs=["out"], timeout_us=timeout_us)
        for _ in range(2):
            world.request(options=options)
            world.answer(0)
            seen.append(world.open[0][1].options)
            while world.open:
                world.answer(0)
    assert seen[0] is seen[1]
    assert seen[2] is seen[3]
    assert [each.timeout_us for each in seen] == [0, 0, 5, 5]
    world.check_over()


@pytest.mark.parametrize("keeps", [False, True])
def test_small_inputs(keeps):
    """They are in the request of the step, each time as they are then."""
    world = chain(CHAIN[0], CHAIN[1])
    world.keeps = keeps
    for content in (b"x", b"y"):
        world.request()
        assert inputs_of(world, 0) == ([b"\0"], [])
        world.answer(0)
        for outputs in world.kept.values():
            outputs[0].data[:] = b"y"
        assert inputs_of(world, 0) == ([content if keeps else b"x"], [])
        while world.open:
            world.answer(0)
    world.check_over()


@pytest.mark.parametrize("keeps", [False, True])
def test_large_inputs(keeps, monkeypatch):
    """The request of the step refers to them."""
    monkeypatch.setattr("pyruntime.runtime.ensembles.step_call.INLINE_BYTES_MAX", 0)
    world = chain(CHAIN[0], CHAIN[1])
    world.keeps = keeps
    for _ in range(2):
        world.request()
        assert inputs_of(world, 0) == ([address(1, 0)], [world.memory.region])
        world.answer(0)
        region = world.models["m0"].region
        assert inputs_of(world, 0) == ([address(region.number, 0)], [region])
        while world.open:
            world.answer(0)
    world.check_over()

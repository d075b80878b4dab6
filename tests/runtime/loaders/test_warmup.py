# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The warm-up of one instance, with batches that answer as the test says."""

import asyncio
from types import SimpleNamespace

import pytest

from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.loaders.warmup import warm_up_of
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.utils.errors import Code, InferenceError, LoadError

from ..model_specs import spec_from

CONFIG = """name: 'm' max_batch_size: 8
input { name: 'A' data_type: TYPE_INT8 dims: 3 }
sequence_batching {
  control_input { name: 'START' control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
}
model_warmup {
  name: 's' batch_size: 2 count: 3
  inputs { key: 'A' value { data_type: TYPE_INT8 dims: 3 random_data: true } }
  inputs { key: 'START' value { data_type: TYPE_INT32 dims: 1 input_data_file: 'start' } }
}
"""


class Batches:
    """Answers each request of a batch with `answer(job)`."""

    def __init__(self, memory, answer):
        self.memory = memory
        self.answer = answer
        self.executed = []

    def warm_up(self, batch):
        self.executed.append([[self.contents(tensor) for tensor in job.tensors] for job in batch])
        for job in batch:
            job.free()
            self.answer(job)

    def contents(self, tensor):
        name, _, shape, at, size, *_ = tensor
        return name, shape, bytes(self.memory.region.view[at : at + size])


@pytest.fixture
def memory():
    made = RequestMemory("m", 1 << 20, 1 << 20)
    yield made
    made.close()


@pytest.fixture
def run(memory, tmp_path):
    """Warms an instance up."""
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup/start").write_bytes(b"\1\0\0\0")
    model = ModelVersion(spec_from(CONFIG), 1, memory, lambda *_: None)
    warm_up = warm_up_of(model, str(tmp_path))

    def run(answer, concurrency=1):
        batches = Batches(memory, answer)
        asyncio.run(warm_up(SimpleNamespace(name="m_0"), batches, concurrency))
        return batches.executed

    return run


def test_contents(run, memory):
    """The same contents each time, each request in memory of its own, and nothing is left."""
    executed = run(lambda job: job.respond(None, True))
    assert len(executed) == 3
    ((a, _), (start, _)) = executed[0][0], executed[0][1]
    assert a[:2] == ("A", [1, 3])
    assert len(a[2]) == 3
    assert executed == [[[a, ("START", [1], b"\1\0\0\0")]] * 2] * 3
    assert start == a
    assert memory.live == 0


def test_instances_of_one_process(run, memory):
    """Each sample is executed by all of them at once: the next one comes when they all have answered."""
    waiting = []

    def answer(job):
        waiting.append(job)
        if len(waiting) == 3 * 2:
            for each in waiting:
                each.respond(None, True)
            waiting.clear()

    assert len(run(answer, 3)) == 3 * 3
    assert memory.live == 0


def test_waits_for_the_end_of_execute(memory, tmp_path):
    """A sample holds the resources of its instance until execute has returned, also if a sender answers before."""

    posted = None

    class Early(Batches):
        def warm_up(self, batch):
            self.executed.append(batch)
            for job in batch:
                self.answer(job)
            posted.set()

    async def act():
        nonlocal posted
        posted = asyncio.Event()
        batches = Early(memory, lambda job: job.respond(None, True))
        text = CONFIG.replace("input_data_file: 'start'", "zero_data: true")
        model = ModelVersion(spec_from(text), 1, memory, lambda *_: None)
        warm_up = warm_up_of(model, str(tmp_path))
        task = asyncio.ensure_future(warm_up(SimpleNamespace(name="m_0"), batches, 1))
        for count in (1, 2, 3):
            await posted.wait()
            posted.clear()
            await asyncio.sleep(0)
            assert len(batches.executed) == count
            assert not task.done()
            for job in batches.executed[-1]:
                job.free()
        await task

    asyncio.run(act())
    assert memory.live == 0


def test_failure(run, memory):
    """The messages of all requests of the first sample that fails; none is executed after it."""
    executed = []

    def answer(job):
        executed.append(job)
        job.respond(InferenceError(f"no {len(executed)}"), True)

    with pytest.raises(LoadError) as caught:
        run(answer)
    assert str(caught.value) == "failed to run warmup sample 's': no 1; no 2; "
    assert len(executed) == 2
    assert memory.live == 0


def test_no_memory(run, memory, monkeypatch):
    """Without memory for a request the load fails, and what the others had is free."""
    real, calls = memory.allocate, []

    def allocate(size):
        calls.append(size)
        if len(calls) == 4:
            raise InferenceError("no room")
        return real(size)

    monkeypatch.setattr(memory, "allocate", allocate)
    with pytest.raises(LoadError, match=r"^failed to run warmup sample 's': no room; $"):
        run(lambda job: job.respond(None, True))
    assert memory.live == 0


def test_wrong_sample(memory, tmp_path):
    """The error of a sample that is no request to the model is that of the request, as in Triton; memory is free."""
    model = ModelVersion(spec_from(CONFIG.replace("dims: 3 random", "dims: 2 random")), 1, memory, lambda *_: None)
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup/start").write_bytes(b"\1\0\0\0")
    batches = Batches(memory, None)
    with pytest.raises(LoadError, match=r"^\[request id: <id_unknown>\] unexpected shape for input 'A'") as caught:
        asyncio.run(warm_up_of(model, str(tmp_path))(SimpleNamespace(name="m_0"), batches, 1))
    assert caught.value.code is Code.INVALID_ARG
    assert (batches.executed, memory.live) == ([], 0)


def test_none(memory, tmp_path):
    """A model without samples has no warm-up."""
    model = ModelVersion(spec_from("name: 'm'"), 1, memory, lambda *_: None)
    assert warm_up_of(model, str(tmp_path)) is None

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Responses of backends, and their memory: see tests/native/responses.cc."""

import gc
import weakref
from ctypes import addressof, c_char

import pytest

IN = ("IN", "INT32", [1, 2], b"\1\0\0\0\2\0\0\0")
OUTPUTS = ["OUT", "IN", "TEXT", "EMPTY", "SCALAR", "UNWRITTEN", "TWICE", "HUGE", "TFP16", "TUINT64", "TFP64"]
# Where blocks begin that are kept, where huge pages may begin, and their neighbours.
SIZES = [
    1,
    63,
    64,
    65,
    (128 << 10) - 1,
    128 << 10,
    (128 << 10) + 1,
    (160 << 10) + 1,
    (4 << 20) - 1,
    4 << 20,
    (5 << 20) + 1,
]


class Owner:
    """Of memory on a GPU."""


def owner_in(owners, call):
    """An owner for the answer to a call for memory, to which `owners` get a weak reference."""
    assert (call.method, call.arguments) == ("OutputBuffer", (3, 4))
    owner = Owner()
    owners.append(weakref.ref(owner))
    return owner


@pytest.fixture
def backend(native):
    """The ID of the first request is the action for its batch; without one, the inputs are returned."""
    return native("responses.cc", outputs=OUTPUTS)


def outputs_of(job):
    """The outputs of the one response, their contents as bytes."""
    ((final, failure, outputs, _),) = job.responses
    assert final
    assert failure is None
    return [(name, datatype, shape, bytes(buffer)) for name, datatype, shape, buffer in outputs]


def numbers_of(job):
    """The numbers in the responses with outputs, in order."""
    return [
        int.from_bytes(bytes(outputs[0][3]), "little")
        for _, failure, outputs, _ in job.responses
        if outputs and not failure
    ]


class TestOutputs:
    """The outputs that a backend has written."""

    def test_are_what_was_written(self, backend, request_of):
        """Every datatype, no dimension, no bytes."""
        inputs = [
            IN,
            ("TEXT", "BYTES", [2], b"\1\0\0\0a\0\0\0\0"),
            ("EMPTY", "BF16", [0, 3], b""),
            ("SCALAR", "BOOL", [], b"\1"),
            *((f"T{kind}", kind, [1], b"12345678"[:size]) for kind, size in [("FP16", 2), ("UINT64", 8), ("FP64", 8)]),
        ]
        (job,) = backend.run(request_of("echo", *inputs))
        assert outputs_of(job) == inputs
        assert job.responses[0][3] is None

    def test_may_lack_a_buffer(self, backend, request_of):
        """They are empty then. A buffer is given once, and more than there is to give is an error."""
        (job,) = backend.run(request_of("answer", IN))
        ((_, _, outputs, parameters),) = job.responses
        assert [(*rest, bytes(buffer)) for *rest, buffer in outputs] == [
            ("SCALAR", "FP32", [], b"\0\0\x80?"),
            ("UNWRITTEN", "BYTES", [2, 3], b""),
            ("EMPTY", "BF16", [0, 4], b""),
            ("TWICE", "INT8", [1], b"\2"),
            ("HUGE", "UINT8", [-1], b""),
        ]
        assert parameters == {
            "text": "Grüße",
            "number": -(2**63),
            "yes": True,
            "no": False,
            "float": -0.5,
            "again": "Already exists: allocated buffer for output 'TWICE' already exists",
            "bytes": 0,
            "too much": f"Unavailable: no memory for the {2**64 - 4} bytes of output 'HUGE'",
            "output 1": "UNWRITTEN BYTES 2,3",
            "output EMPTY": "BF16 0,4",
            "no output": "Invalid argument: unexpected inference output 'NO' for model 'model'",
            "no datatype": "Invalid argument: TRITONBACKEND_ResponseOutput: output 'OUT' has no datatype",
            "output 9": "Invalid argument: out of bounds index 9: response has 5 outputs",
            "output NO": "Not found: Output name NO not found.",
        }
        assert [type(parameters[name]) for name in ("yes", "number", "float")] == [bool, int, float]

    def test_may_be_on_a_gpu(self, backend, request_of):
        """Where Python says so, and the backend prefers that; but no texts. The memory is Python's."""
        memory, owners = (c_char * 4)(), []
        backend.answer = lambda call: call.answer((addressof(memory), owner_in(owners, call)))
        (job,) = backend.run(request_of("gpu", IN, region=("OUT", "IN", "TEXT")))
        ((_, _, outputs, parameters),) = job.responses
        there, again = "GPU 3", "Already exists: allocated buffer for output '{}' already exists"
        assert parameters == {
            "gone": f"{there}, {again.format('OUT')}",
            "here": f"{there}, {again.format('OUT')}",
            "host": f"CPU 0, {again.format('IN')}",
            "text": f"CPU 0, {again.format('TEXT')}",
            "else": f"CPU 0, {again.format('SCALAR')}",
        }
        (_, _, shape, owner), *others = outputs
        assert (shape, owner, bytes(memory)) == ([1], owners[1](), b"here")
        assert [bytes(buffer) for *_, buffer in others] == [b"host", b"text", b"else"]
        assert owners[0]() is None  # of the response that was deleted
        del owner, outputs, job
        assert owners[1]() is None

    @pytest.mark.parametrize(
        "answer",
        [lambda call: call.answer(None), lambda call: call.fail(1, "no"), lambda call: None],
        ids=["none", "error", "dropped"],
    )
    def test_are_in_main_memory_without_an_answer(self, backend, request_of, answer):
        """For whatever reason there is no memory on the GPU."""
        backend.answer = answer
        (job,) = backend.run(request_of("gpu", IN, region=("OUT",)))
        ((_, _, outputs, parameters),) = job.responses
        assert {told.partition(",")[0] for told in parameters.values()} == {"CPU 0"}
        assert bytes(outputs[0][3]) == b"here"

    def test_give_way_to_an_error(self, backend, request_of):
        """A response that is sent with an error is that error, and the error stays the backend's."""
        job, report = backend.run(request_of("error", IN), request_of("", IN))
        assert job.failure == (4, "not today")
        assert len(job.responses) == 1
        assert report.parameters == {"still": "not today"}


class TestMany:
    """Responses of decoupled models."""

    def test_may_come_after_the_release(self, backend, request_of):
        """From a factory; the end needs no response, and flags that say nothing are no news."""
        (job,) = backend.run(request_of("factory", IN))
        assert numbers_of(job) == [0, 1, 2]
        assert job.events[0] == ("released", (False, None))
        assert [final for final, *_ in job.responses] == [False, False, False, True]
        assert job.responses[-1] == (True, None, None, None)

    def test_may_come_from_many_threads(self, backend, request_of):
        """Each thread's in order, none lost, none after the last."""
        (job,) = backend.run(request_of("threads", IN))
        numbers = numbers_of(job)
        assert sorted(numbers) == list(range(1000))
        for thread in range(10):
            of_thread = [number for number in numbers if number // 100 == thread]
            assert of_thread == sorted(of_thread)
        assert [index for index, (final, *_) in enumerate(job.responses) if final] == [1000]

    def test_end_with_the_final_one(self, backend, request_of):
        """A response after the final one is not sent, and is an error in the backend."""
        job, report = backend.run(request_of("late", IN), request_of("", IN))
        told = "Invalid argument: model 'model' has sent the final response to request 'late' before: "
        told += "what comes after it is not sent"
        assert report.parameters == {"response": told, "final": told, "flags": told}
        assert job.responses == [(True, None, [], None)]

    def test_are_lost_with_the_last_factory(self, backend, request_of):
        """Not before: it could still have made the final one."""
        first, second = backend.execute(request_of("keep", IN), request_of("", IN))
        backend.wait(lambda: first.released and second.released and not backend._running)
        assert first.responses == second.responses == []
        (job,) = backend.run(request_of("let go", IN))
        backend.wait(lambda: first.over and second.over)
        assert outputs_of(job) == [IN]
        for each in (first, second):
            assert each.failure[0] == 1
            assert each.failure[1].startswith("model 'model' sent no final response")


class TestMemory:
    """Outputs are memory of their own."""

    @pytest.mark.parametrize("size", SIZES)
    def test_is_found_again(self, backend, request_of, size):
        """A buffer of any size has its contents as long as it is in use: it is not given to another output."""
        kept = []
        for fill in range(3):
            contents = bytes([fill]) * size
            (job,) = backend.run(request_of("echo", ("IN", "UINT8", [size], contents)))
            assert outputs_of(job)[0][3] == contents
            kept.append(job.responses[0][2][0][3])
        assert [(len(buffer), bytes(buffer)) for buffer in kept] == [(size, bytes([fill]) * size) for fill in range(3)]

    def test_stays_as_long_as_it_is_looked_at(self, native, request_of):
        """A buffer stays while it is viewed, without its response, request and backend; and it can be written to."""
        backend = native("responses.cc", outputs=OUTPUTS)
        contents = bytes(range(256)) * 1000
        (job,) = backend.run(request_of("echo", ("IN", "UINT8", [len(contents)], contents)))
        view = memoryview(job.responses[0][2][0][3])
        reference = weakref.ref(job)
        del job
        gc.collect()
        assert reference() is None
        backend.run(request_of("echo", ("IN", "UINT8", [len(contents)], bytes(len(contents)))))
        assert view == contents
        assert not view.readonly
        view[0] = 7
        assert view[0] == 7

    def test_is_not_made_by_hand(self, backend):
        """Only outputs have it."""
        with pytest.raises(TypeError, match="cannot create"):
            backend.triton.Buffer()


class TestView:
    """Memory that is native code's own."""

    def test_is_read_where_it_lies(self, backend, request_of):
        """A view shares the memory, and keeps its owner alive."""

        class Owner:
            """Of nothing."""

        _, (memory,) = request_of("", IN)
        owner = Owner()
        view = backend.triton.view(addressof(memory), len(memory), owner)
        reference = weakref.ref(owner)
        del owner
        assert view == IN[3]
        memory[0] = b"\7"
        assert view[0] == 7
        with pytest.raises(TypeError, match="read-only"):
            view[0] = 1
        assert reference() is not None
        del view
        assert reference() is None

    def test_may_be_part_of_a_cycle(self, backend, request_of):
        """Which is found and taken apart."""

        class Owner:
            """Of a view."""

        _, (memory,) = request_of("", IN)
        owner = Owner()
        owner.view = backend.triton.view(addressof(memory), len(memory), owner)
        reference = weakref.ref(owner)
        del owner
        gc.collect()
        assert reference() is None

    def test_has_a_size(self, backend):
        """None, or more, never less."""
        assert len(backend.triton.view(0, 0, None)) == 0
        with pytest.raises(ValueError, match="less than no bytes"):
            backend.triton.view(0, -1, None)

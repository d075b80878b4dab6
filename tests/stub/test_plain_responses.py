# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Native code writes the responses that Python writes, to the same places, or leaves all of a batch to Python."""

import threading

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.regions import create_region
from pyruntime.stub import plain
from pyruntime.stub.pb_utils.errors import TritonError
from pyruntime.stub.pb_utils.request import InferenceRequest
from pyruntime.stub.pb_utils.response import InferenceResponse
from pyruntime.stub.pb_utils.tensor import Tensor
from pyruntime.stub.responses import ResponseWriter, StateWriter
from pyruntime.utils import fast_path
from pyruntime.utils.dtypes import DATATYPES
from pyruntime.utils.errors import OutOfMemoryError
from pyruntime.utils.frames import pack
from pyruntime.utils.messages import SLOT, TAGS, Result

if fast_path.is_off():
    pytest.skip("native code is switched off", allow_module_level=True)

GROWTH_BYTES = 1 << 16
OUTPUTS = {"A", "B", "Ü"}
DTYPES = [datatype.numpy for datatype in DATATYPES if datatype.numpy and datatype.size] + [">i4", ">f8"]


class Side:
    """A writer with memory of its own, and the requests and responses of a batch."""

    def __init__(self):
        self.region = create_region("responses of a test")
        self.writer = ResponseWriter(self.region, GROWTH_BYTES, "m", OUTPUTS)
        self.undeclared = []
        self.writer.on_undeclared = self.undeclared.append

    def wires(self, responses, requests):
        """As Python writes them."""
        return [
            self.writer.write(response, request._outputs) for response, request in zip(responses, requests, strict=True)
        ]

    def contents(self, wires):
        """The bytes of all outputs."""
        return [self.region.map[at : at + size] for wire in wires for _, _, _, at, size, _, _ in wire[3]]

    def free(self, wires):
        self.writer.free([wire[SLOT] for wire in wires if wire[SLOT] >= 0])


@pytest.fixture(scope="module")
def sides():
    """A writer for Python, and one for native code with its function that writes."""
    python, native = Side(), Side()
    yield python, native, plain.response_writer(native.writer)
    python.region.close()
    native.region.close()


@st.composite
def arrays(draw):
    """An array of any kind: also one of no elements, in another order, not contiguous, or read-only."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(st.lists(st.integers(0, 5), max_size=3) | st.sampled_from([[9, 500], [5000], [40000]]))
    contents = np.random.default_rng(draw(st.integers(0, 9))).bytes(int(np.prod(shape, dtype=int)) * dtype.itemsize)
    array = np.frombuffer(contents, dtype).reshape(shape)
    return draw(st.sampled_from([array, array.T, array[::2] if shape else array, array.copy()]))


TENSORS = st.builds(Tensor, st.sampled_from(sorted(OUTPUTS)), arrays()) | st.builds(
    lambda name, texts: Tensor(name, np.array(texts, object)), st.just("A"), st.lists(st.binary(), max_size=3)
)
PARAMETERS = st.none() | st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2)
RESPONSES = st.builds(
    lambda tensors, some: InferenceResponse(tensors, None, some), st.lists(TENSORS, max_size=3), PARAMETERS
)
NAMES = st.none() | st.lists(st.sampled_from(sorted(OUTPUTS)), max_size=2)


def make_request(names=None):
    return InferenceRequest._from_wire(None, ["", 0, 0, 0, names, "", [], "", None], OUTPUTS, 7)


@given(st.lists(st.tuples(RESPONSES, NAMES), max_size=4))
def test_same(sides, batch):
    """The outcomes are the same bytes, and the outputs, in the same slots; the requests count as answered."""
    python, native, write = sides
    responses = [response for response, _ in batch]
    requests = [make_request(names) for _, names in batch]
    wires = python.wires(responses, requests)
    outcomes = write(responses, requests)
    # A large array that is not contiguous is left to Python.
    written = outcomes is not None
    if not written:
        assert any(not tensor._array.flags.c_contiguous for each in responses for tensor in each.output_tensors())
        assert not any(request._answered for request in requests)
        native.free(native.wires(responses, requests))
        python.free(wires)
        return
    assert outcomes == pack(wires)
    assert native.contents(wires) == python.contents(wires)
    assert all(request._answered for request in requests)
    assert native.writer._arena._live == python.writer._arena._live
    python.free(wires)
    native.free(wires)
    assert not native.writer._arena._live


@given(
    st.integers(0, 2**63 - 1),
    st.lists(st.integers(0, 300), max_size=20),
    st.integers(0, 2**63 - 1),
    st.binary(max_size=3000),
)
def test_frame(batch, retained, time_ns, text):
    """The frame of a result is what the channel makes of it."""
    wires = [(0, "", -1, [("A", "INT8", [3], 0, 3, 0, 0)], text.hex())]
    frame = plain.result(TAGS[Result], batch, pack(wires), retained, time_ns, time_ns + 1)
    assert frame == pack((TAGS[Result], Result(batch, wires, retained, time_ns, time_ns + 1)))


A = Tensor("A", np.array([1, 2], np.float32))
B = Tensor("B", np.zeros(300, np.int64))


class Odd(InferenceResponse):
    """A response of a class of a model's own."""


def rescheduled(request):
    request.set_release_flags(2)


def with_stream(request):
    request._stream = object()


def without_flags(request):
    del request._release_flags


def with_other_outputs(request):
    request._outputs = frozenset(OUTPUTS)


UNCHANGED = None
NOT_PLAIN = {
    "None for all": (None, UNCHANGED),
    "None for one": ([InferenceResponse([A]), None], UNCHANGED),
    "too few": ([InferenceResponse([A])], UNCHANGED),
    "a tuple": ((InferenceResponse([A]), InferenceResponse([A])), UNCHANGED),
    "an error": ([InferenceResponse([A]), InferenceResponse(error=TritonError("no"))], UNCHANGED),
    "an undeclared output": ([InferenceResponse([A]), InferenceResponse([Tensor("C", np.zeros(1))])], UNCHANGED),
    "a class of the model's own": ([InferenceResponse([A]), Odd([A])], UNCHANGED),
    "something else": ([InferenceResponse([A]), 1], UNCHANGED),
    "a rescheduled request": ([InferenceResponse([A]), InferenceResponse([B])], rescheduled),
    "a request with a sender": ([InferenceResponse([A]), InferenceResponse([B])], with_stream),
    "a request without flags": ([InferenceResponse([A]), InferenceResponse([B])], without_flags),
    "outputs elsewhere": ([InferenceResponse([A]), InferenceResponse([B])], with_other_outputs),
}


@pytest.mark.parametrize("case", NOT_PLAIN)
def test_not_plain(sides, case):
    """One response that is not plain leaves all to Python, and nothing has changed."""
    _, native, write = sides
    responses, change = NOT_PLAIN[case]
    requests = [make_request(), make_request()]
    if change:
        change(requests[1])
    assert write(responses, requests) is None
    assert [request._answered for request in requests] == [False, False]
    assert not native.writer._arena._live
    assert native.undeclared == []


def test_tensors_of_other_classes(sides):
    """An output that is on a GPU, or of a model's own class, is Python's."""

    class Own(Tensor):
        pass

    assert sides[2]([InferenceResponse([Own("A", np.zeros(1))])], [make_request()]) is None


def test_contents_that_raise(sides, monkeypatch):
    """Contents that cannot be encoded are Python's, which words the error."""

    def refuse(tensor):
        raise ValueError("no")

    monkeypatch.setattr(Tensor, "_encoded", refuse)
    tensor = Tensor("A", np.array([b"a"], object))
    assert sides[2]([InferenceResponse([tensor])], [make_request()]) is None


def test_another_thread_allocates(sides):
    """Who would have to wait for the lock leaves the batch to Python, which waits."""
    _, native, write = sides
    responses, requests = [InferenceResponse([A])], [make_request()]
    with native.writer._lock:
        assert write(responses, requests) is None
    native.writer.take_back(native.writer._allocate(1))
    assert write(responses, requests) is None
    assert native.writer.free_bytes
    outcomes = write(responses, requests)
    assert outcomes is not None
    native.free(msgpack.unpackb(outcomes))


def test_no_memory(monkeypatch):
    """Where memory lacks for one response, the slots of those before are free again, and Python says so."""

    def allocate(size):
        raise OutOfMemoryError("no")

    side = Side()
    side.free([side.writer.write(InferenceResponse([A]), OUTPUTS)])  # a small slot is free from now on
    monkeypatch.setattr(side.writer._arena, "allocate", allocate)
    requests = [make_request(), make_request()]
    assert plain.response_writer(side.writer)([InferenceResponse([A]), InferenceResponse([B])], requests) is None
    assert [request._answered for request in requests] == [False, False]
    assert not side.writer._arena._live
    assert not side.writer._lock.locked()
    side.region.close()


def test_sender_made_meanwhile(monkeypatch):
    """A sender that the model gets while memory is allocated answers the request, as it does in Python."""
    side = Side()
    request = make_request()
    allocate = side.writer._arena.allocate

    def allocate_slowly(size):
        request._stream = object()
        return allocate(size)

    monkeypatch.setattr(side.writer._arena, "allocate", allocate_slowly)
    assert plain.response_writer(side.writer)([InferenceResponse([A])], [request]) is None
    assert not request._answered
    assert not side.writer._arena._live
    side.region.close()


def test_large_contents_while_others_run(sides):
    """Contents are copied whole while other threads run."""
    _, native, write = sides
    tensor = Tensor("A", np.arange(1 << 20))
    done = threading.Event()
    thread = threading.Thread(target=lambda: [None for _ in iter(done.is_set, True)])
    thread.start()
    outcomes = write([InferenceResponse([tensor])], [make_request()])
    done.set()
    thread.join()
    wires = msgpack.unpackb(outcomes)
    assert native.contents(wires) == [tensor._array.tobytes()]
    native.free(wires)


def test_writers_of_states():
    """A writer that also writes states writes all by itself."""
    region = create_region("responses of a test")
    write = plain.response_writer(StateWriter(region, GROWTH_BYTES, "m", OUTPUTS, set()))
    assert write([InferenceResponse([A])], [make_request()]) is None
    region.close()


def test_wrong_arguments(sides):
    """Native code that is called wrongly raises TypeError."""
    for wrong in (lambda: sides[2](), lambda: sides[2]([], ()), lambda: plain.result(1, 2, "", [], 3, 4)):
        with pytest.raises(TypeError):
            wrong()

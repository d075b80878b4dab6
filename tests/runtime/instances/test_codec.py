# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests on their way to a stub, and responses of one that cannot be trusted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.execution.states import SequenceStates, no_copies
from pyruntime.runtime.instances.codec import (
    KEPT_FIELDS_MAX,
    KEPT_OUTPUTS_MAX,
    KEPT_RESPONSES_MAX,
    ResponseReader,
    StateReader,
    error_wire,
    response_wire,
)
from pyruntime.runtime.memory.client_use import ClientUse
from pyruntime.runtime.requests.types import (
    DERIVED_MAX,
    ClientContents,
    InferRequest,
    InferResponse,
    KeptOutputs,
    OutputPlace,
    OutputTensor,
)
from pyruntime.utils.addresses import address
from pyruntime.utils.dtypes import DATATYPES
from pyruntime.utils.errors import Code, InferenceError, PeerError
from pyruntime.utils.messages import NO_SLOT, OK, RESCHEDULED, SENDER
from pyruntime.utils.request_codec import MEMORY_GPU, RequestOptions

from ..model_specs import spec_from

LIMIT = 4096
REGION = memoryview(bytes(range(256)) * 16)


def spec_of(text):
    return spec_from(text)


PLAIN = spec_of("input { name: 'IN' data_type: TYPE_FP32 dims: 2 } output { name: 'OUT' data_type: TYPE_FP32 dims: 2 }")
RESHAPED = spec_of(
    "max_batch_size: 8 input { name: 'IN' data_type: TYPE_FP32 dims: 2 } "
    "output { name: 'OUT' data_type: TYPE_FP32 dims: [1] reshape: { shape: [] } } "
    "output { name: 'TWO' data_type: TYPE_FP32 dims: [-1, 4] reshape: { shape: [4, -1] } }"
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=4)
    | st.binary(max_size=4) | st.sampled_from(["FP32", "OUT"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=2), inner, max_size=5),
    max_leaves=10,
)  # fmt: skip


class Region:
    """Stands for a stub's response region."""

    number = 9
    limit = LIMIT
    view = REGION


def reader_of(spec, released=None):
    def release(slot, size):
        released.append((slot, size))

    return ResponseReader(spec, 3, Region(), release)


@pytest.fixture
def reader():
    return reader_of(PLAIN)


class TestOutputs:
    def test_good(self, reader):
        """An output is a view of the region, where the stub says it is."""
        outputs, size = reader.outputs([["OUT", "FP32", [1, 2], 64, 8, 0, 0], ["TWO", "BYTES", [0], 0, 0, 0, 0]])
        assert size == 8
        assert outputs == [
            OutputTensor("OUT", "FP32", [1, 2], REGION[64:72], address(9, 64)),
            OutputTensor("TWO", "BYTES", [0], b"", address(9, 0)),
        ]  # fmt: skip
        assert type(outputs[0].data) is memoryview

    def test_none(self, reader):
        """A response may have no outputs."""
        assert reader.outputs([]) == ([], 0)

    @pytest.mark.parametrize("datatype", DATATYPES, ids=lambda datatype: datatype.name)
    def test_of_every_datatype(self, reader, datatype):
        """Every datatype may come back."""
        ((output,), _) = reader.outputs([["OUT", datatype.name, [0], 0, 0, 0, 0]])
        assert output.datatype == datatype.name

    def test_at_the_very_end(self, reader):
        """The last byte of a region is within it."""
        for offset, size in [(LIMIT - 1, 1), (LIMIT, 0), (0, LIMIT)]:
            ((output,), total) = reader.outputs([["OUT", "UINT8", [size], offset, size, 0, 0]])
            assert len(output.data) == total == size

    @pytest.mark.parametrize(
        ("offset", "size"),
        [(-1, 1), (0, -1), (8, -8), (LIMIT, 1), (0, LIMIT + 1), (LIMIT + 1, 0), (2**63, 2**63), (-8, 8)],
    )
    def test_outside_of_the_region(self, reader, offset, size):
        """An output outside of the stub's own region is refused."""
        with pytest.raises(PeerError, match="lies outside the response region"):
            reader.outputs([["OUT", "UINT8", [1], offset, size, 0, 0]])

    @pytest.mark.parametrize(
        ("place", "value"),
        [
            (place, value)
            for place, values in enumerate(
                [
                    [None, 1, b"OUT", [], {}],
                    [None, 1, "FP8", "", "TYPE_FP32", [], {}, b"FP32"],
                    [None, 1, "12", {}, [1.0], [None], ["1"], [True], [[1]]],
                    [None, "0", 0.0, [], {}, float("nan"), float("inf")],
                    [None, "8", 8.0, [], {}, float("nan")],
                    [None, "0", 1, 2, -1, [], {}, float("nan")],
                    [None, "0", 1, -1, [], {}, float("nan")],
                ]
            )
            for value in values
        ],
        ids=repr,
    )
    def test_field_of_another_type(self, reader, place, value):
        """Every field has its type, and the memory must be CPU memory."""
        tensor = ["OUT", "UINT8", [8], 0, 8, 0, 0]
        tensor[place] = value
        with pytest.raises(PeerError):
            reader.outputs([tensor])

    @pytest.mark.parametrize("tensors", [None, 1, "text", {"a": 1}, b"bytes", 1.5, True], ids=repr)
    def test_no_list(self, reader, tensors):
        """Outputs come in a list."""
        with pytest.raises(PeerError):
            reader.outputs(tensors)

    @pytest.mark.parametrize(
        "tensor", [None, 1, "OUTxx", [], ["OUT", "FP32", [1], 0, 4], ["OUT", "FP32", [1], 0, 4, 0, 0, 0], {}], ids=repr
    )
    def test_no_tensor(self, reader, tensor):
        """A tensor has seven fields."""
        with pytest.raises(PeerError):
            reader.outputs([tensor])

    @given(st.lists(JUNK, max_size=5))
    def test_junk(self, tensors):
        """Arbitrary data of a stub is outputs, or the stub's fault."""
        for spec in (PLAIN, RESHAPED):
            try:
                outputs, _ = reader_of(spec).outputs(tensors)
            except PeerError:
                continue
            assert all(type(output) is OutputTensor for output in outputs)

    @given(st.tuples(st.just("OUT"), st.just("FP32"), JUNK, JUNK, JUNK, JUNK, JUNK).map(list))
    def test_nearly_an_output(self, tensor):
        """The same of what begins well."""
        try:
            ((output,), _) = reader_of(RESHAPED).outputs([tensor])
        except PeerError:
            return
        assert all(type(dim) is int for dim in output.shape)


class Client:
    """Stands for the memory of a client."""

    number = 5

    def count_on(self):
        pass


def place(offset=64, size=16):
    return OutputPlace("r", 7, size, ClientContents(Client(), address(5, offset), size))


class TestClientMemory:
    @pytest.mark.parametrize("size", [0, 8, 16])
    def test_output(self, reader, size):
        """An output is in its place in client memory; the client gets the size that was used."""
        client = ClientUse(InferRequest("m", output_places={"OUT": place()}), print)
        tensors = [["TWO", "UINT8", [8], 0, 8, 0, 0], ["OUT", "UINT8", [size], address(5, 64), size, 0, 0]]
        (two, output), total = reader.outputs(tensors, client)
        assert (two.place, two.byte_size, total) == (None, 8, 8)
        assert output.place == OutputPlace("r", 7, size, place().contents)
        assert (bytes(output.data), output.byte_size) == (b"", size)

    @pytest.mark.parametrize(
        ("name", "at", "size"),
        [
            ("OUT", address(5, 65), 8),
            ("OUT", address(6, 64), 8),
            ("OUT", address(5, 64), 17),
            ("OUT", address(5, 64), -1),
            ("TWO", address(5, 64), 8),
            (7, address(5, 64), 8),
        ],
    )
    def test_output_elsewhere(self, reader, name, at, size):
        """It may lie nowhere else."""
        client = ClientUse(InferRequest("m", output_places={"OUT": place()}), print)
        with pytest.raises(PeerError, match="lies outside the response region"):
            reader.outputs([[name, "UINT8", [8], at, size, 0, 0]], client)

    def test_reshape_is_undone(self):
        """There, too."""
        client = ClientUse(InferRequest("m", output_places={"OUT": place()}), print)
        (output,), _ = reader_of(RESHAPED).outputs([["OUT", "FP32", [2], address(5, 64), 8, 0, 0]], client)
        assert output.shape == [2, 1]


class TestReshape:
    def test_is_undone(self):
        """The client sees the configured dims, and not those of the model."""
        outputs, _ = reader_of(RESHAPED).outputs(
            [["OUT", "FP32", [2], 0, 8, 0, 0], ["TWO", "FP32", [1, 4, 5], 0, 80, 0, 0]]
        )
        assert [output.shape for output in outputs] == [[2, 1], [1, 5, 4]]

    @pytest.mark.parametrize("shape", [[], [1, 2], [1, 2, 3, 4]], ids=str)
    def test_of_an_unexpected_shape(self, shape):
        """An output of another shape than configured keeps it."""
        count = 4
        for dim in shape:
            count *= dim
        ((output,), _) = reader_of(RESHAPED).outputs([["TWO", "FP32", shape, 0, count, 0, 0]])
        assert output.shape == shape


def job(id=""):
    return Job(id, RequestOptions(), [], 1, None, [], print, 0)


GOOD = ["OUT", "FP32", [1, 2], 64, 8, 0, 0]


class TestResponse:
    def test_good(self):
        """A response has the model's name and version, the request's id, and its memory to give back, once read."""
        released = []
        reader = reader_of(PLAIN, released)
        response = reader.response(job("7"), [OK, "", 64, [GOOD], '{"a":1}'])
        assert (response.model_name, response.model_version, response.id) == ("m", 3, "7")
        assert response.outputs == [OutputTensor("OUT", "FP32", [1, 2], REGION[64:72], address(9, 64))]
        assert response.parameters == {"a": 1}
        assert [type(region) for region in response.regions] == [Region]
        assert released == []
        response.release()
        assert released == [(64, 8)]

    def test_without_memory(self):
        """A response in no slot has nothing to give back."""
        released = []
        response = reader_of(PLAIN, released).response(job(), [OK, "", NO_SLOT, [["OUT", "FP32", [0], 0, 0, 0, 0]], ""])
        response.release()
        assert released == []

    @pytest.mark.parametrize("code", Code)
    def test_error(self, reader, code):
        """An error has the model's code and text."""
        error = reader.response(job(), [code, "no", NO_SLOT, [], ""])
        assert type(error) is InferenceError
        assert (error.message, error.code) == ("no", code)

    @pytest.mark.parametrize(
        "wire",
        [
            [], [OK], [OK, "", NO_SLOT, []], [OK, "", NO_SLOT, [], "", ""], [99, "", NO_SLOT, [], ""],
            [-2, "", NO_SLOT, [], ""], ["0", "", NO_SLOT, [], ""], [[], "", NO_SLOT, [], ""],
            [OK, "", None, [], ""], [OK, "", 0.5, [], ""], [OK, "", "0", [], ""], [OK, "", True, [], ""],
            [OK, "", NO_SLOT, None, ""], [OK, "", NO_SLOT, 5, ""], [OK, "", NO_SLOT, [GOOD[:4]], ""],
            [OK, "", NO_SLOT, [], "{"], [OK, "", NO_SLOT, [], 5], [OK, "", NO_SLOT, [], [1]],
        ],
        ids=repr,
    )  # fmt: skip
    def test_bad(self, reader, wire):
        """Anything else is the stub's fault."""
        with pytest.raises(PeerError):
            reader.response(job(), wire)

    @given(st.lists(JUNK, max_size=6) | st.tuples(st.just(OK), JUNK, JUNK, JUNK, JUNK).map(list))
    def test_junk(self, wire):
        """Arbitrary data of a stub is a response, or the stub's fault."""
        try:
            response = reader_of(PLAIN).response(job(), wire)
        except PeerError:
            return
        assert isinstance(response, (InferResponse, InferenceError))


class TestKept:
    """Outputs of responses that are described alike."""

    @staticmethod
    def respond(reader, slot, *tensors, each=None):
        return reader.response(each or job(), [OK, "", slot, [list(tensor) for tensor in tensors], ""])

    def test_again(self, reader):
        """They are the very same, and all else is the response's own."""
        first, second, third = (self.respond(reader, 64, GOOD, each=job(id)) for id in ("1", "2", "3"))
        assert third.outputs is second.outputs
        assert second.outputs == first.outputs
        assert (type(first.outputs), type(second.outputs)) == (list, KeptOutputs)
        assert (first.id, second.id) == ("1", "2")

    @pytest.mark.parametrize("place", range(5))
    def test_another_description(self, reader, place):
        """In the same slot it makes other outputs."""
        other = list(GOOD)
        other[place] = ["OTHER", "INT32", [2], 72, 4][place]
        first = self.respond(reader, 64, GOOD).outputs
        assert self.respond(reader, 64, other).outputs == reader_of(PLAIN).outputs([other])[0]
        assert self.respond(reader, 64, GOOD).outputs == first
        assert self.respond(reader, 128, GOOD).outputs is not first

    def test_bad(self, reader):
        """One that is wrong is refused, whatever was kept."""
        self.respond(reader, 64, GOOD)
        with pytest.raises(PeerError):
            self.respond(reader, 64, [*GOOD[:3], LIMIT, 8, 0, 0])

    def test_memory_of_a_client(self, reader):
        """Its places differ from request to request."""
        asking = job()
        asking.client = ClientUse(InferRequest("m", output_places={"OUT": place()}), print)
        assert type(self.respond(reader, 64, GOOD, each=asking).outputs) is list

    @pytest.mark.parametrize(
        "tensors",
        [
            pytest.param([GOOD] * (KEPT_OUTPUTS_MAX + 1), id="outputs"),
            pytest.param([["O" * KEPT_FIELDS_MAX, *GOOD[1:]]], id="name"),
            pytest.param([[*GOOD[:2], [1] * KEPT_FIELDS_MAX, *GOOD[3:]]], id="shape"),
        ],
    )
    def test_large(self, reader, tensors):
        """Long descriptions are not kept."""
        self.respond(reader, 64, *tensors)
        assert type(self.respond(reader, 64, *tensors).outputs) is list

    def test_limit(self, reader):
        """The number of those that are kept is limited."""
        self.respond(reader, 0, GOOD)
        first = self.respond(reader, 0, GOOD).outputs
        for slot in range(1, KEPT_RESPONSES_MAX):
            self.respond(reader, slot, GOOD)
        assert self.respond(reader, 0, GOOD).outputs is first
        self.respond(reader, KEPT_RESPONSES_MAX, GOOD)
        assert self.respond(reader, 0, GOOD).outputs is not first

    def test_forgotten(self, reader):
        """At the end of the stub there are no views of its region left."""
        self.respond(reader, 64, GOOD)
        first = self.respond(reader, 64, GOOD).outputs
        reader.forget()
        assert self.respond(reader, 64, GOOD).outputs is not first

    def test_derived(self):
        """What is derived from them is limited as well."""
        outputs = KeptOutputs([])
        for number in range(DERIVED_MAX + 1):
            outputs.derive(number, str(number))
        assert outputs.derived == {DERIVED_MAX: str(DERIVED_MAX)}


STATEFUL = spec_of(
    "max_batch_size: 8 input { name: 'IN' data_type: TYPE_FP32 dims: 2 } "
    "output { name: 'OUT' data_type: TYPE_FP32 dims: 2 } "
    "sequence_batching { state { input_name: 'S' output_name: 'T' data_type: TYPE_FP32 dims: 2 } }"
)


class TestStates:
    @pytest.fixture
    def released(self):
        return []

    @pytest.fixture
    def reader(self, released):
        return StateReader(STATEFUL, 3, Region(), lambda slot, size: released.append((slot, size)))

    @pytest.fixture
    def job(self):
        made = job()
        made.states = SequenceStates(STATEFUL.sequence_batching.states, "m", no_copies)
        return made

    def test_good(self, reader, released, job):
        """The states of a response are those of its sequence; their slot is given back when they are replaced."""
        for at in (128, 256):
            wire = [OK, "", 64, [GOOD], "", [at, [["T", "FP32", [1, 2], at, 8, 0, 0]]]]
            response = reader.response(job, wire)
            assert [output.name for output in response.outputs] == ["OUT"]
            (state,) = job.states.inputs
            assert state[:5] == ("S", "FP32", [1, 2], address(9, at), 8)
        assert released == [(128, 8)]

    def test_none(self, reader, released, job):
        """A response without states leaves them as they are."""
        before = job.states.inputs
        reader.response(job, [OK, "", 64, [GOOD], ""])
        assert job.states.inputs == before
        assert released == []

    def test_wrong(self, reader, released, job):
        """A state of another shape makes an error of the response, and changes nothing."""
        before = job.states.inputs
        failure = reader.response(job, [OK, "", 64, [GOOD], "", [128, [["T", "FP32", [2, 2], 128, 16, 0, 0]]]])
        assert (failure.code, failure.message) == (
            Code.INTERNAL,
            "model 'm' returned a wrong state: unable to add state 'T'. Its shape is [1, 2], got [2, 2]",
        )
        assert sorted(released) == [(64, 8), (128, 16)]
        assert job.states.inputs == before

    def test_on_a_gpu(self, released, job):
        """A state may lie on the GPU of the instance, in memory that the stub leases, and goes with its slot."""
        chunk = Region()
        reader = StateReader(STATEFUL, 3, Region(), self.note(released), {12: chunk}.__getitem__, gpu=2)
        at = address(12, 64)
        reader.response(job, [OK, "", 64, [GOOD], "", [128, [["T", "FP32", [1, 2], at, 8, MEMORY_GPU, 2]]]])
        (state,) = job.states.inputs
        assert (*state[:5], state.place) == ("S", "FP32", [1, 2], at, 8, (MEMORY_GPU, 2))
        assert [*state.memory.regions][1:] == [chunk]
        assert released == []
        job.states.drop()
        assert released == [(128, 8)]

    @pytest.mark.parametrize(("gpu", "device"), [(None, 2), (1, 2)])
    def test_on_another_gpu(self, released, job, gpu, device):
        """No other state is on a GPU than one of a model that reads inputs there, nor on another GPU."""
        reader = StateReader(STATEFUL, 3, Region(), self.note(released), lambda number: None, gpu=gpu)
        states = [128, [["T", "FP32", [1, 2], address(12, 64), 8, MEMORY_GPU, device]]]
        with pytest.raises(PeerError, match="output 'T' lies in memory of kind 2, device 2"):
            reader.response(job, [OK, "", 64, [GOOD], "", states])

    def note(self, released):
        return lambda slot, size: released.append((slot, size))

    def test_of_no_sequence(self, reader, released):
        """What a model returns for padding is dropped."""
        reader.response(job(), [OK, "", 64, [GOOD], "", [128, [["T", "FP32", [1, 2], 128, 8, 0, 0]]]])
        assert released == [(128, 8)]

    @pytest.mark.parametrize(
        "states",
        [None, 5, [], [128], ["a", []], [128, [], 1], [128, 5], [128, [["T", "FP32", [1, 2], LIMIT, 8]]]],
    )
    def test_bad(self, reader, job, states):
        """States that are no states are refused."""
        with pytest.raises(PeerError):
            reader.response(job, [OK, "", 64, [GOOD], "", states])


class TestResponses:
    def test_one_for_each(self, reader):
        """Each job has its own, in order; what stands in place of one is left as it is."""
        wires = [[OK, "", 64, [GOOD], ""], SENDER, RESCHEDULED, [Code.NOT_FOUND, "no", NO_SLOT, [], ""]]
        first, *between, last = reader.responses([job("1"), job("2"), job("3"), job("4")], wires)
        assert (type(first), first.id) == (InferResponse, "1")
        assert between == [SENDER, RESCHEDULED]
        assert type(last) is InferenceError

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_another_number(self, reader, count):
        """There are as many as jobs."""
        with pytest.raises(PeerError, match="do not match the batch"):
            reader.responses([job(), job()], [SENDER] * count)

    @pytest.mark.parametrize("wrong", [1, -1, False, True, 0.0, "", "text", b"", {}], ids=repr)
    def test_something_in_place_of_one(self, reader, wrong):
        """A value that is not a response is refused, also if it is equal to a constant that stands for one."""
        with pytest.raises(PeerError, match="stands in place of a response"):
            reader.responses([job()], [wrong])


class TestForTheCaller:
    """Responses of one model as another one that called it reads them."""

    def test_response(self):
        """Tensors go by their addresses, and the memory by the number of its hold."""
        outputs = [OutputTensor("OUT", "FP32", [1, 2], REGION[64:72], address(9, 64))]
        response = InferResponse("m", 3, "7", outputs, {"a": 1})
        assert response_wire(response, 5) == (OK, "", 5, [("OUT", "FP32", [1, 2], address(9, 64), 8, 0, 0)], '{"a":1}')
        assert response_wire(InferResponse("m", 3, "", []), NO_SLOT) == (OK, "", NO_SLOT, [], "")

    def test_error(self):
        """An error goes with its code."""
        assert error_wire(InferenceError("no", Code.NOT_FOUND)) == (2, "no", NO_SLOT, [], "")

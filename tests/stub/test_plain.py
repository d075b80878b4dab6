# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Native code makes the objects that Python makes, and what it does not know goes to Python."""

import os
import subprocess
import sys
from copy import deepcopy
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.regions import create_region
from pyruntime.stub import plain
from pyruntime.stub.memory import Regions
from pyruntime.stub.pb_utils.errors import TritonError
from pyruntime.stub.pb_utils.request import InferenceRequest
from pyruntime.stub.pb_utils.response import InferenceResponse
from pyruntime.stub.pb_utils.tensor import Tensor
from pyruntime.utils import fast_path
from pyruntime.utils.dtypes import DATATYPES

if fast_path.is_off():
    pytest.skip("native code is switched off", allow_module_level=True)

REGION_BYTES = 1 << 16
SIZES = {datatype.name: datatype.size for datatype in DATATYPES}
TEXTS = st.text(max_size=8)
NUMBERS = st.integers(0, 2**64 - 1)


@pytest.fixture(scope="module")
def regions():
    """The regions of a stub, with contents of all kinds in its request region."""
    region = create_region("requests of a test")
    region.commit(0, REGION_BYTES)
    region.map[0:REGION_BYTES] = np.random.default_rng(1).integers(0, 256, REGION_BYTES, np.uint8).tobytes()
    yield Regions(region, None)
    region.close()


@st.composite
def references(draw):
    """A reference to a tensor of any datatype, whose contents lie anywhere in the region, or in the message."""
    datatype = draw(st.sampled_from(sorted(SIZES)))
    if datatype == "BYTES":
        return [draw(TEXTS), datatype, [1], b"\x02\0\0\0ab", 6, 0, 0]
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    size = int(np.prod(shape, dtype=int)) * SIZES[datatype]
    at = draw(st.integers(0, 1000) | st.integers(0, 100).map(lambda n: 64 * n))
    contents = draw(st.sampled_from([at, at, at, bytes(range(256)) * 3]))
    return [draw(TEXTS), datatype, shape, contents if type(contents) is int else contents[:size], size, 0, 0]


WIRES = st.builds(
    lambda *fields: [*fields, None],
    TEXTS,
    NUMBERS | TEXTS,
    NUMBERS,
    NUMBERS,
    st.none() | st.lists(TEXTS, max_size=3),
    TEXTS,
    st.lists(references(), max_size=3),
    TEXTS,
)


def attributes(thing):
    """All attributes that an object has."""
    return {
        name: getattr(thing, name) for name in type(thing).__slots__ if name != "__weakref__" and hasattr(thing, name)
    }


def told(function, *arguments):
    """What a function returns, or what it raises."""
    try:
        result = function(*arguments)
    except Exception as exc:
        return type(exc), str(exc)
    if isinstance(result, np.ndarray):
        pointer = 0 if result.dtype == object else result.ctypes.data
        owned = result.base is None or type(result.base) is bytearray
        return result.dtype, result.shape, result.tolist().__repr__(), result.flags.writeable, owned or pointer
    return result


@given(st.lists(WIRES, max_size=3), NUMBERS.filter(lambda n: n < 2**62))
def test_requests(regions, wires, batch):
    """Requests have the same attributes, and so have their inputs; the contents are the same memory, or the same."""
    outputs = {"OUT"}
    made = plain.make_requests(wires, regions, outputs, batch)
    expected = plain.requests_from_wires(deepcopy(wires), regions, outputs, batch)
    assert [type(each) for each in made] == [InferenceRequest] * len(wires)
    for request, other in zip(made, expected, strict=True):
        assert attributes(request) == attributes(other)
        assert (request._outputs is outputs) == (other._outputs is outputs)
        inputs = request.inputs()
        assert inputs is request.inputs()
        for tensor, reference in zip(inputs, plain.PYTHON["inputs"](other), strict=True):
            assert type(tensor) is Tensor
            assert attributes(tensor) == attributes(reference)
            assert told(tensor.as_numpy) == told(plain.PYTHON["as_numpy"], reference)
            if tensor._array is not None:
                assert tensor.as_numpy() is tensor._array
        for name in [tensor.name() for tensor in inputs] + ["none"]:
            found = plain.get_input_tensor_by_name(request, name)
            assert found is plain.PYTHON["get_input_tensor_by_name"](request, name)


PLACES = {"OUT": [4096, 64, 0, 0]}
ODD_REQUESTS = {
    "places": ["", 0, 0, 0, None, "", [], "", PLACES],
    "a tuple": ("", 0, 0, 0, None, "", [["IN", "FP32", [1], 0, 4, 0, 0]], "", None),
}


@pytest.mark.parametrize("wire", ODD_REQUESTS.values(), ids=ODD_REQUESTS)
def test_odd_requests(regions, wire):
    """What is no list of the usual fields, or has places, is as Python makes it."""
    (made,) = plain.make_requests([wire], regions, {"OUT"}, 5)
    (expected,) = plain.requests_from_wires([wire], regions, {"OUT"}, 5)
    left_out = {"_outputs", "_region"} if wire[-1] else set()
    assert {**attributes(made), **dict.fromkeys(left_out)} == {**attributes(expected), **dict.fromkeys(left_out)}
    assert (type(made._outputs), type(made._region)) == (type(expected._outputs), type(expected._region))


@pytest.mark.parametrize("wire", [["", 0], None, [1] * 10])
def test_broken_requests(regions, wire):
    """What is no request raises what it raises in Python."""
    made = told(plain.make_requests, [wire], regions, set(), 5)
    assert made == told(plain.requests_from_wires, [wire], regions, set(), 5)
    assert made[0] in (ValueError, TypeError)


@pytest.mark.parametrize("change", ["_tensors", "_inputs"])
def test_attributes_that_are_gone(regions, change):
    """A request without its inputs raises what it raises in Python."""
    (request,) = plain.make_requests([["", 0, 0, 0, None, "", [], "", None]], regions, set(), 5)
    delattr(request, change)
    assert told(request.inputs) == told(plain.PYTHON["inputs"], request)
    assert told(request.inputs)[0] is AttributeError


def test_contents_beyond_the_region(regions):
    """An address that is not in the mapping raises what it raises in Python."""
    end = len(regions.own[0])
    assert end - 4 > regions.own[1]
    ref = ["IN", "FP32", [2], regions.own[1], end, 0, 0]
    tensor, other = (Tensor._from_region(regions, [*ref[:2], [1 << 40], *ref[3:]]) for _ in range(2))
    assert told(tensor.as_numpy) == told(plain.PYTHON["as_numpy"], other)
    assert told(tensor.as_numpy)[0] is TypeError


class Odd(InferenceRequest):
    """A request of a class of a model's own."""


class Text(str):
    """A name of a class of a model's own."""


def test_names_of_other_kinds(regions):
    """Requests and names of other classes, names of arguments, and wrong calls are Python's."""
    wires = [["", 0, 0, 0, None, "", [["A", "FP32", [1], 0, 4, 0, 0], ["B", "FP32", [1], 0, 4, 0, 0]], "", None]]
    (request,) = plain.make_requests(wires, regions, set(), 5)
    odd = Odd._from_wire(regions, wires[0], set(), 6)
    find = plain.get_input_tensor_by_name
    assert find(request, Text("B")) is request.inputs()[1]
    assert find(odd, "B") is odd.inputs()[1]
    assert find(inference_request=request, name="B") is find(request, name="B") is request.inputs()[1]
    assert find(request, b"B") is None
    request.inputs().append(Named())
    assert find(request, "C") is request.inputs()[2]
    for arguments in ((request,), (request, "B", 1), (None, "B")):
        assert told(find, *arguments) == told(plain.PYTHON["get_input_tensor_by_name"], *arguments)


class Named:
    """What a model may put among inputs."""

    def name(self):
        return "C"


def test_held_among_things_of_other_kinds(regions):
    """A request with an input that is no tensor is looked at in Python."""
    wire = ["", 0, 0, 0, None, "", [["A", "FP32", [1], 0, 4, 0, 0]], "", None]
    requests = plain.make_requests([wire] * 3, regions, set(), 5)
    kept = requests[1].inputs()[0].as_numpy()
    requests[2].inputs().append(Tensor("B", kept))
    assert plain.still_held(requests) == plain.PYTHON["still_held"](requests) == [1, 2]
    requests[0].inputs().append(Named())
    assert told(plain.still_held, requests) == told(plain.PYTHON["still_held"], requests)
    assert told(plain.still_held, requests)[0] is AttributeError


@pytest.mark.processes
def test_classes_that_are_not_as_expected():
    """Native code refuses classes whose objects it cannot read, and a second lot: nothing is lost but speed."""
    code = (
        "from pyruntime.stub import _plain\n"
        "class Tensor: pass\n"
        "names = 'as_numpy inputs get_input_tensor_by_name tensor_of request_of still_held init_tensor init_response'\n"
        "functions = dict.fromkeys(names.split())\n"
        "for some in ({}, functions):\n"
        "    try: _plain.use(Tensor, Tensor, Tensor, Tensor, Tensor, {}, {}, some)\n"
        "    except ImportError as exc: print(exc)\n"
        "from pyruntime.stub import plain\n"
        "print(plain.make_requests is _plain.make_requests)\n"
        "classes = plain.Tensor, plain.InferenceRequest, plain.InferenceResponse\n"
        "try: _plain.use(*classes, Tensor, Tensor, {}, {}, functions)\n"
        "except ImportError as exc: print(exc)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "there is no function as_numpy",
        "<class '__main__.Tensor'> objects do not show where they have _id",
        "True",
        "the classes are in use already",
    ]


@pytest.mark.processes
def test_without_native_code():
    """Without the fast path, and where the extension cannot be loaded, there is Python only."""
    code = (
        "import sys, os; sys.modules.update(dict.fromkeys(sys.argv[1:]))\n"
        "from pyruntime.stub import plain, pb_utils\n"
        "assert plain.make_requests is plain.requests_from_wires\n"
        "assert plain.still_held is plain.held_alone\n"
        "assert pb_utils.Tensor.as_numpy is plain.PYTHON['as_numpy']\n"
        "assert plain.get_input_tensor_by_name is plain.PYTHON['get_input_tensor_by_name']\n"
    )
    for arguments, variables in ((), {fast_path.VARIABLE: "1"}), (("pyruntime.stub._plain",), {}):
        subprocess.run([sys.executable, "-c", code, *arguments], env={**os.environ, **variables}, check=True)


class Own(np.ndarray):
    """An array of a class of a model's own."""


TENSOR_ARGUMENTS = [
    ("OUT", np.zeros((2, 3), np.float32)),
    ("OUT", np.array(1, np.bool_)),
    ("OUT", np.zeros(2, ">i2")),
    ("OUT", np.zeros(2, np.float32).view(Own)),
    ("OUT", np.array([b"a"], object)),
    ("OUT", np.array(["a"])),
    ("OUT", np.zeros(2, np.complex64)),
    ("OUT", [1, 2]),
    ("OUT", None),
    ("", np.zeros(1)),
    (b"OUT", np.zeros(1)),
    (Text("OUT"), np.zeros(1)),
    (1, np.zeros(1)),
    ("OUT",),
    ("OUT", np.zeros(1), 1),
]


@pytest.mark.parametrize("arguments", TENSOR_ARGUMENTS, ids=lambda arguments: repr(arguments)[:40])
def test_tensors_of_models(arguments):
    """A tensor that a model makes has the same attributes, and what is no tensor raises the same."""
    found, expected = Tensor.__new__(Tensor), Tensor.__new__(Tensor)
    said = told(found.__init__, *arguments)
    assert said == told(plain.PYTHON["init_tensor"], expected, *arguments)
    assert list(map(repr, attributes(found).values())) == list(map(repr, attributes(expected).values()))
    assert said is not None or (found._array is arguments[1]) == (expected._array is arguments[1])


def test_arguments_of_tensors_have_no_names():
    """As in Python."""
    with pytest.raises(TypeError):
        Tensor(name="OUT", array=np.zeros(1))


OUT = Tensor("OUT", np.zeros(1))
RESPONSE_ARGUMENTS = [
    ((), {}),
    (([],), {}),
    (([OUT, OUT],), {}),
    ((), {"output_tensors": [OUT]}),
    (((OUT,),), {}),
    (([None],), {}),
    (([1],), {}),
    ((1,), {}),
    ((None,), {}),
    (([OUT], None, {"a": 1}), {}),
    (([OUT],), {"parameters": {"a": 1}}),
    (([OUT],), {"error": TritonError("no")}),
    ((), {"error": 1}),
    ((), {"errors": 1}),
    (([OUT], None, None, None), {}),
    (([OUT],), {"output_tensors": [OUT]}),
]


@pytest.mark.parametrize(("arguments", "named"), RESPONSE_ARGUMENTS, ids=map(repr, range(len(RESPONSE_ARGUMENTS))))
def test_responses_of_models(arguments, named):
    """A response that a model makes has the same attributes, and what is no response raises the same."""
    found, expected = (InferenceResponse.__new__(InferenceResponse) for _ in range(2))
    said = told(partial(found.__init__, **named), *arguments)
    assert said == told(partial(plain.PYTHON["init_response"], **named), expected, *arguments)
    assert attributes(found) == attributes(expected)
    if said is None and arguments:
        assert found._output_tensors is not arguments[0]

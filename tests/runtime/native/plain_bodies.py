# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests near the border of what native code reads, and what the reference makes of them."""

import json
import math
from dataclasses import replace

from hypothesis import strategies as st

from pyruntime.runtime.config.inputs import check_request
from pyruntime.runtime.config.spec import TensorSpec
from pyruntime.runtime.execution.job import request_options, tensor_refs
from pyruntime.runtime.frontends.http.kserve_request import decode_infer
from pyruntime.runtime.inference.plain_requests import PlainRequest, PlainRequests
from pyruntime.runtime.memory.requests import RequestMemory, RequestSlot
from pyruntime.utils.arena import ALIGNMENT
from pyruntime.utils.errors import InferenceError

from ..model_specs import BARE_SPEC
from .json_values import TEXTS_OF_CLIENTS, WHATEVER, Raw, elements, mostly, nested

FLOATS = TensorSpec("FLOATS", "FP32", (-1,), (-1, -1))
FIXED = TensorSpec("FIXED", "INT8", (2,), (-1, 2), optional=True)
TEXTS = TensorSpec("TEXTS", "BYTES", (-1,), (-1, -1), optional=True)
DATATYPES_OF = {"FLOATS": "FP32", "FIXED": "INT8", "TEXTS": "BYTES"}
OUTPUTS = {name: TensorSpec(name, "FP32", (-1,), (-1, -1)) for name in ("Y", "Z")}
BATCHING = replace(
    BARE_SPEC,
    inputs={"FLOATS": FLOATS, "FIXED": FIXED, "TEXTS": TEXTS},
    outputs=OUTPUTS,
    required_inputs=frozenset({"FLOATS"}),
    max_batch_size=4,
)
ALONE = replace(
    BARE_SPEC,
    inputs={"FLOATS": replace(FLOATS, shape=(-1,)), "TEXTS": replace(TEXTS, shape=(-1,), optional=False)},
    outputs=OUTPUTS,
    required_inputs=frozenset({"FLOATS", "TEXTS"}),
    max_batch_size=0,
)
# Where a body lies, and what is made of its document.
ADDRESS = 4096
MADE = 1 << 20


class Memory(RequestMemory):
    """Request memory without a region, in which a slot is taken once."""

    def __init__(self):
        self.contents = None

    def allocate(self, size, lead=0, data=None):
        assert self.contents is None
        self.contents = memoryview(bytearray(size if data is None else data))
        assert len(self.contents) == size
        return RequestSlot(None, self, 0, MADE, size)

    def __getitem__(self, part):
        return self.contents[part.start - MADE : part.stop - MADE]

    def find(self, tensors):
        """The contents of the tensors that lie here, by their names."""
        here = [tensor for tensor in tensors if tensor[3] >= MADE]
        assert all(tensor[3] % ALIGNMENT == 0 for tensor in here)
        return {name: bytes(self[at : at + size]) for name, _, _, at, size, _, _ in here}


def options_of(options):
    """The field `binary` of a plain request."""
    assert not options.classes
    return options.default_binary if options.binary is None else options.binary


def reference(spec, body, length):
    """What the reference makes of a request: the fields of PlainRequest, and contents; or an error.

    The body lies at ADDRESS if it has binary data. What is made of its document is in other memory.
    """
    memory = Memory()
    base, length = (-1, None) if length == len(body) else (ADDRESS, length)
    try:
        request, options = decode_infer(memoryview(body), length, spec, base=base)
        check_request(spec, request)
    except InferenceError as exc:
        return exc, {}
    slot = memory.place(request)
    plain = PlainRequest(
        request.id,
        request_options(request),
        tensor_refs(request.inputs),
        request.batch_size,
        request.priority,
        options_of(options),
        slot,
    )
    return plain._replace(slot=slot and slot.size), memory.find(plain.tensors)


def read(spec, body, length):
    """The same, as native code reads it; None for a miss, which took no memory."""
    memory = Memory()
    plain = PlainRequests(spec).read_document(body, length, ADDRESS, memory.allocate)
    if plain is None:
        assert memory.contents is None
        return None
    return plain._replace(slot=plain.slot and plain.slot.size), memory.find(plain.tensors)


def check_request_is_read_as_by_the_reference(spec, body, length):
    """Returns whether native code reads it."""
    found = read(spec, body, length)
    if found is None:
        return False
    expected = reference(spec, body, length)
    assert found == expected
    assert list(map(type, found[0].options)) == list(map(type, expected[0].options))
    assert type(found[0].binary) is type(expected[0].binary)
    return True


@st.composite
def with_another_byte(draw, data):
    """Mostly as it is; else with a byte changed, taken away or put in."""
    if not data or draw(mostly(st.just(True), st.just(False), rare=3)):
        return data
    at = draw(st.integers(0, len(data) - 1))
    new = draw(st.sampled_from([b"", b"\xff", *(bytes([each]) for each in b'\0 \t\r\n:",}]0e')]))
    return data[:at] + new + data[at + draw(st.integers(0, 1)) :]


ODD_SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 5, -1, 2**31, 2**62, 2**64, 1.0, "1", None, True]), max_size=3)


class Members(list):
    """An object as it is written: a name may be there twice."""


@st.composite
def members(draw, wanted, others=("more",)):
    """An object with these members in any order, and seldom without one, or with others."""
    missing = draw(mostly(st.none(), st.sampled_from([*wanted, None])))
    chosen = [(name, value) for name, value in wanted.items() if name != missing]
    more = draw(mostly(st.none(), st.sampled_from([*wanted, *others])))
    if more is not None:
        chosen.append((more, draw(WHATEVER)))
    return Members(draw(st.permutations(chosen)))


def write(value, comma, colon):
    if isinstance(value, dict):
        value = Members(value.items())
    if isinstance(value, Members):
        return "{" + comma.join(f"{json.dumps(name)}{colon}{write(each, comma, colon)}" for name, each in value) + "}"
    if isinstance(value, list):
        return "[" + comma.join(write(each, comma, colon) for each in value) + "]"
    return value if isinstance(value, Raw) else json.dumps(value, ensure_ascii=False)


def encode(document, comma=",", colon=":"):
    """The bytes of a document."""
    return write(document, comma, colon).encode(errors="surrogateescape")


@st.composite
def inputs(draw, name, shape):
    datatype = DATATYPES_OF.get(name, "FP32")
    shape = draw(mostly(st.just(shape), ODD_SHAPES))
    count = math.prod(dim if type(dim) is int and 0 <= dim < 9 else 1 for dim in shape)
    if datatype == "BYTES":
        words = [draw(st.binary(max_size=3)) for _ in range(count)]
        contents = b"".join(len(word).to_bytes(4, "little") + word for word in words)
        contents = draw(mostly(st.just(contents), with_another_byte(contents)))
    else:
        contents = bytes(count * (4 if datatype == "FP32" else 1))
    size = draw(mostly(st.just(len(contents)), st.sampled_from([0, 1, 4, 8, 2**63, -1, "8", 8.0])))
    datatype = draw(mostly(st.just(datatype), st.sampled_from(["FP32", "INT32", "fp32", "", 1])))
    parameters = draw(members({"binary_data_size": size}, ["shared_memory_region"]))
    entry = {"name": name, "shape": shape, "datatype": datatype, "parameters": parameters}
    return draw(members(entry, ["data"])), contents


@st.composite
def json_inputs(draw, name, shape, datatype):
    shape = draw(mostly(st.just(shape), ODD_SHAPES))
    count = math.prod(dim if type(dim) is int and 0 <= dim < 9 else 1 for dim in shape)
    count = draw(mostly(st.just(count), st.integers(0, 3)))
    data = draw(nested([draw(elements(datatype)) for _ in range(count)]))
    datatype = draw(mostly(st.just(datatype), st.sampled_from(["FP32", "BF16", "FP16", "INT32", "fp32", "", 1])))
    data = draw(mostly(st.just(data), WHATEVER))
    entry = {"name": name, "shape": shape, "datatype": datatype, "data": data}
    return draw(members(entry, ["parameters"]))


FLAGS = mostly(st.booleans(), st.sampled_from([1, None]))
OPTIONS = {
    "binary_data_output": FLAGS,
    "sequence_id": mostly(
        st.sampled_from([0, 1, 10**18 - 1, "a", "a" * 128]), st.sampled_from([10**18, "", "a" * 129])
    ),
    "sequence_start": FLAGS,
    "sequence_end": FLAGS,
    "priority": mostly(st.integers(0, 3), st.sampled_from([2**64, -1])),
    "timeout": mostly(st.just(1000), st.just(1.5)),
    "own": mostly(st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(-1e15, 1e15), TEXTS_OF_CLIENTS), WHATEVER, 9),
    "more": st.sampled_from([1, False, "b", 2**63, 1e22]),
}
IDS = mostly(TEXTS_OF_CLIENTS, st.sampled_from([7, Raw('"\\ud800"'), Raw('"\udcff"'), Raw('"\\x"'), "é" * 5000]))


@st.composite
def outputs(draw):
    """Some way for each of the outputs."""
    entries = []
    names = mostly(st.sampled_from([["Y"], ["Z"], ["Y", "Z"], []]), st.sampled_from([["Y", "Y"], ["W"]]), rare=9)
    for name in draw(names):
        entry = draw(members({"name": name}, ["parameters"]))
        if draw(st.booleans()):
            flag = draw(FLAGS)
            entry.append(("parameters", draw(members({"binary_data": flag}, ["classification"]))))
        entries.append(entry)
    return entries


@st.composite
def requests(draw, names, shape):
    names = draw(st.permutations(names[: draw(st.integers(2, len(names)))]))
    names = draw(mostly(st.just(names), st.just([*names, *names[:1]])))
    as_json = draw(st.sampled_from([set(), set(names), set(names[:1])]))
    chosen = []
    for name in names:
        if name in as_json:
            chosen.append((draw(json_inputs(name, shape(name), DATATYPES_OF.get(name, "FP32"))), b""))
        else:
            chosen.append(draw(inputs(name, shape(name))))
    document = {"inputs": [entry for entry, _ in chosen]}
    if draw(st.booleans()):
        document["id"] = draw(IDS)
    if draw(st.booleans()):
        document["outputs"] = draw(outputs())
    if draw(st.booleans()):
        some = draw(st.lists(st.sampled_from(sorted(OPTIONS)), unique=True))
        document["parameters"] = draw(members({name: draw(OPTIONS[name]) for name in some}, ["custom", "triton_x"]))
    comma, colon = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\r\n\t", " :")]))
    text = encode(draw(members(document)), comma, colon)
    text = draw(mostly(st.just(text), with_another_byte(text), rare=3))
    body = text + b"".join(contents for _, contents in chosen) + draw(mostly(st.just(b""), st.just(b"x")))
    return body, max(len(text) + draw(mostly(st.just(0), st.sampled_from([1, -1]))), 1)

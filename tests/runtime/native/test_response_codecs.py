# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Native code reads outputs of plain responses, and writes answers over HTTP, as the reference does, or not at all.

The examples are near the border of what is accepted.
"""

import json
import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, event, example, given
from hypothesis import strategies as st
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

from pyruntime.runtime.config.spec import TensorSpec
from pyruntime.runtime.frontends.http.kserve_request import ALL_BINARY, ALL_JSON, OutputOptions, output_options
from pyruntime.runtime.frontends.http.kserve_response import encode_any
from pyruntime.runtime.frontends.http.plain_answer import plain_answer
from pyruntime.runtime.frontends.http.response_head import CLOSE, KEEP_ALIVE, infer_head
from pyruntime.runtime.inference.plain_requests import PlainRequests
from pyruntime.runtime.instances.codec import ResponseReader
from pyruntime.runtime.instances.output_findings import OutputFindings
from pyruntime.runtime.native._codecs import OutputReader, write_answer, write_document
from pyruntime.runtime.requests.types import InferResponse, OutputPlace, OutputTensor
from pyruntime.utils.addresses import address
from pyruntime.utils.dtypes import BY_NAME, DATATYPES

from ..model_specs import BARE_SPEC
from .json_values import mostly
from .plain_bodies import with_another_byte

SPEC = replace(BARE_SPEC, outputs={name: TensorSpec(name, "FP32", (2,), (-1, 2)) for name in ("Y", "Z")})

# --- outputs

REGION = memoryview(bytes(range(256)))
LIMIT = 200


class Region:
    """Stands for the region of a stub."""

    number = 9
    limit = LIMIT
    view = REGION


class Findings(OutputFindings):
    """Notes what is wrong with outputs."""

    def __init__(self, spec):
        super().__init__(spec, "model.py")
        self.found = []

    def _say(self, name, aspect, sentence):
        self.found.append(sentence)


INTEGERS = st.sampled_from(
    [0, 1, 8, LIMIT - 8, LIMIT, LIMIT + 1, -1, -(2**63), 2**63 - 1, 2**63, 2**64, True, 1.0, "1"]
)


@st.composite
def output_refs(draw):
    """References to outputs as a stub sends them, or nearly so."""
    refs = []
    names = draw(
        mostly(
            st.lists(st.sampled_from(["Y", "Z"]), max_size=2, unique=True),
            st.lists(st.sampled_from(["Y", "Z", "X", "\ud800", b"Y"]), max_size=3),
            rare=9,
        )
    )
    for name in names:
        rows = draw(mostly(st.integers(0, 3), st.integers(-2, 3), rare=9))
        size = draw(mostly(st.just(max(rows, 0) * 8), st.integers(0, 9), rare=9))
        at = draw(mostly(st.integers(0, LIMIT - 24), st.integers(0, LIMIT), rare=9))
        ref = [name, "FP32", [rows, 2], at, size, 0, 0]
        change = draw(mostly(st.none(), st.integers(0, 7), rare=4))
        if change in (0, 3, 4, 5, 6):
            ref[change] = draw(INTEGERS)
        elif change == 1:
            ref[1] = draw(st.sampled_from(["INT32", "NONE", "fp32", 1]))
        elif change == 2:
            ref[2] = draw(st.sampled_from([[], [1], [1, 2, 3], [1, True], [1, 2.0], [1, 2**63], (1, 2), "ab", None]))
        elif change == 7:
            ref = draw(st.sampled_from([ref[:6], [*ref, 0], tuple(ref), None]))
        refs.append(ref)
    return refs


@given(output_refs())
@example([["Y", "FP32", [1, 2], 0, 8, 0, 0], ["Z", "FP32", [3, 2], LIMIT, 0, 0, 0]])
def test_outputs_are_read_as_the_reference_does(refs):
    """Native code accepts nothing that the reference refuses, or says something about, and reads no other outputs."""
    outputs = [(name, each.datatype, each.shape) for name, each in SPEC.outputs.items()]
    plain = OutputReader(outputs, REGION, LIMIT, address(Region.number, 0), OutputTensor).read(refs)
    event(f"is plain: {plain is not None}")
    if plain is not None:
        findings = Findings(SPEC)
        assert plain == ResponseReader(SPEC, 1, Region(), print).outputs(refs)
        findings.check(plain[0])
        assert findings.found == []


@pytest.mark.parametrize("refs", [(), None, "", [None]])
def test_what_are_no_references_to_outputs(refs):
    assert OutputReader([], REGION, LIMIT, 0, OutputTensor).read(refs) is None


class TestOutputReader:
    @pytest.mark.parametrize("outputs", [[("Y", "FP32", ())] * 65, [("Y", "FP32", (1,) * 33)]])
    def test_too_many(self, outputs):
        with pytest.raises(ValueError, match="items, expected at most"):
            OutputReader(outputs, REGION, LIMIT, 0, OutputTensor)

    @pytest.mark.parametrize("outputs", [None, [None], [("Y",)], [(1, "FP32", ())], [("Y", "FP32", ("1",))]])
    def test_other_types(self, outputs):
        with pytest.raises(TypeError):
            OutputReader(outputs, REGION, LIMIT, 0, OutputTensor)


# --- answers

ANSWER_TEXTS = st.sampled_from(["", "a", "name", "a b", '"', "\\", "\x00", "\x7f", "é", "\ud800", "a" * 2000])
ANSWER_DIMS = st.lists(st.sampled_from([0, 1, 2, 3, -1, 2**31, 2**63 - 1, -(2**63), 2**63, 2**70]), max_size=3)
ANSWER_PARAMETERS = st.sampled_from([{}, {"a": 1, "b": '"outputs":'}])
WAYS = st.sampled_from([ALL_BINARY, ALL_JSON]) | st.builds(
    OutputOptions, st.booleans(), st.dictionaries(st.sampled_from(["Y", "Z", "a", "X"]), st.booleans())
)
FLOATS_OF_ANSWERS = st.one_of(
    st.floats(-1e15, 1e15),
    st.integers(-(2**53), 2**53).map(float),
    st.floats(-1e-3, 1e-3),
    st.sampled_from([0.1, -0.0, 1e15, 9999999999999998.0, 1e-4, 1e-5, 9.99e-6, 1e-7, 5e-324, 2.2250738585072014e-308]),
)
ODD_FLOATS = st.sampled_from([1e16, -1e22, 1e300, 3e38, float("nan"), float("inf"), float("-inf")])


@st.composite
def answer_contents(draw, datatype, count):
    """The bytes of an output of so many elements, mostly."""
    count = draw(mostly(st.just(count), st.integers(0, 3)))
    if datatype == "BYTES":
        texts = st.text(max_size=5).map(str.encode) | st.sampled_from([b"\xff", b"\xed\xa0\x80", b'"\\\n\x1f\x7f'])
        strings = [draw(mostly(texts, st.binary(max_size=5), rare=10)) for _ in range(count)]
        contents = b"".join(len(each).to_bytes(4, "little") + each for each in strings)
    elif datatype in ("FP32", "FP64"):
        values = [draw(mostly(FLOATS_OF_ANSWERS, ODD_FLOATS, rare=10)) for _ in range(count)]
        with np.errstate(over="ignore"):
            contents = np.array(values, BY_NAME[datatype].numpy).tobytes()
    else:
        size = BY_NAME[datatype].size
        contents = draw(st.binary(min_size=count * size, max_size=count * size))
    return draw(mostly(st.just(contents), with_another_byte(contents), rare=10))


@st.composite
def answer_outputs(draw, names):
    """An output that fills its shape, or nearly so."""
    datatype = draw(mostly(st.sampled_from([each.name for each in DATATYPES]), st.sampled_from(["", "é", "fp32"])))
    shape = draw(mostly(st.lists(st.integers(0, 3), max_size=3), ANSWER_DIMS))
    count = min(max(math.prod(shape), 0), 27)
    contents = draw(answer_contents(datatype if datatype in BY_NAME else "INT8", count))
    place = draw(mostly(st.none(), st.just(OutputPlace("region", 0, 8, None))))
    return OutputTensor(
        draw(names), datatype, shape, memoryview(contents) if draw(st.booleans()) else contents, place=place
    )


def json_of(parameters):
    return json.dumps(parameters, separators=(",", ":")).encode() if parameters else b""


def reference_answer(response, options, lines, joined_max):
    """The answer, as it is written without native code."""
    document, contents = encode_any(response, options)
    lead = len(document) if contents else 0
    length = len(document) + sum(map(len, contents))
    parts = [infer_head(lead, length, lines) + document, *contents]
    return [b"".join(parts)] if length <= joined_max else parts, length, lead


@given(
    st.builds(
        InferResponse,
        mostly(st.just("m"), ANSWER_TEXTS),
        st.sampled_from([1, 2**63 - 1]),
        mostly(st.sampled_from(["", "1"]), ANSWER_TEXTS),
        st.lists(answer_outputs(mostly(st.sampled_from(["Y", "Z"]), ANSWER_TEXTS)), max_size=3),
        ANSWER_PARAMETERS,
    ),
    WAYS,
    st.sampled_from([b"", CLOSE, KEEP_ALIVE]),
    st.sampled_from([0, 150, 10_000]),
)
def test_an_answer_is_written_as_the_reference_does(response, options, lines, joined_max):
    """Native code writes the same bytes, in the same parts, or none."""
    written = write_answer(response, json_of(response.parameters), options, lines, joined_max)
    document = write_document(response, json_of(response.parameters), options)
    event(f"is plain: {written is not None}")
    assert (written is None) is (document is None)
    if written is not None:
        assert written == reference_answer(response, options, lines, joined_max)
        assert all(type(part) is bytes for part in written[0][:1])
        assert document == encode_any(response, options)


def json_answer(datatype, shape, contents):
    """The document of a response with one output in it, as native code writes it, and as the reference does."""
    response = InferResponse("m", 1, "7", [OutputTensor("Y", datatype, shape, memoryview(contents))])
    written = write_document(response, b"", ALL_JSON)
    return None if written is None else written[0], encode_any(response, ALL_JSON)[0]


@given(st.lists(FLOATS_OF_ANSWERS), st.sampled_from(["FP32", "FP64"]))
def test_usual_numbers_are_written_by_native_code(values, datatype):
    """That is all of them from -1e16 to 1e16, to the last digit."""
    array = np.array(values, BY_NAME[datatype].numpy)
    assume((abs(array) < 1e16).all())  # FP32 has none between the last one and this
    written, expected = json_answer(datatype, [len(values)], array.tobytes())
    assert written == expected


@given(st.lists(st.integers(-(2**63), 2**64 - 1)), st.sampled_from([each.name for each in DATATYPES]))
def test_integers_and_booleans_are_written_by_native_code(values, datatype):
    """All of them are, also bytes that stand for no Boolean."""
    if "INT" in datatype or datatype == "BOOL":
        size = BY_NAME[datatype].size
        contents = b"".join((value % (1 << 8 * size)).to_bytes(size, "little") for value in values)
        written, expected = json_answer(datatype, [len(values), 1], contents)
        assert written == expected


@given(st.lists(st.text()))
def test_texts_are_written_by_native_code(texts):
    """All that are UTF-8 are."""
    encoded = [text.encode() for text in texts]
    contents = b"".join(len(each).to_bytes(4, "little") + each for each in encoded)
    written, expected = json_answer("BYTES", [len(texts)], contents)
    assert written == expected


@pytest.mark.parametrize("datatype", [each.name for each in DATATYPES])
@pytest.mark.parametrize("binary", [True, False, None])
def test_answers_to_clients_are_written_by_native_code(datatype, binary):
    """Whatever Triton's Python client asks for: all outputs in one way, or each in its own."""
    spec = replace(SPEC, inputs={"X": TensorSpec("X", datatype, (-1,), (-1,), optional=True)}, max_batch_size=0)
    asked = None
    if binary is not None:
        asked = [InferRequestedOutput("Y", binary_data=binary), InferRequestedOutput("Z", binary_data=True)]
    tensor = InferInput("X", [2], datatype)
    dtype = ml_dtypes.bfloat16 if datatype == "BF16" else BY_NAME[datatype].numpy
    values = np.full([2], "é", object) if datatype == "BYTES" else np.ones([2], dtype)
    tensor.set_data_from_numpy(values)
    body, length = InferenceServerClient.generate_request_body([tensor], outputs=asked)
    plain = PlainRequests(spec).read_document(body, length, 0, None)
    options = output_options(plain.binary)
    contents = plain.tensors[0][3], plain.tensors[0][4]
    data = memoryview(body)[contents[0] : contents[0] + contents[1]]
    outputs = [OutputTensor(name, datatype, [2], data) for name in "YZ"]
    response = InferResponse("m", 1, "", outputs)
    has_form = datatype not in ("FP16", "BF16") or options.is_binary("Y")
    written = plain_answer(response, options, b"", 10_000)
    assert (written is not None) is has_form
    if written is not None:
        assert written == reference_answer(response, options, b"", 10_000)


def test_contents_that_take_long_are_left_to_a_thread():
    """The size is that of all outputs in the document, and nothing is said of those behind it."""
    for options, sizes, is_written in (
        (ALL_JSON, [64 << 10, 0], True),
        (ALL_JSON, [64 << 10, 1], False),
        (ALL_JSON, [1, 64 << 10], False),
        (ALL_BINARY, [64 << 10, 1], True),
        (OutputOptions(False, {"0": True}), [1, 64 << 10], True),
    ):
        outputs = [OutputTensor(str(number), "INT8", [size], bytes(size)) for number, size in enumerate(sizes)]
        assert (plain_answer(InferResponse("m", 1, "", outputs), options, b"", 0) is not None) is is_written


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "INT64"])
def test_many_floating_point_numbers_are_left_to_python(datatype):
    for size, is_written in ((4 << 10, True), ((4 << 10) + 8, datatype == "INT64")):
        shape = [size // BY_NAME[datatype].size]
        response = InferResponse("m", 1, "", [OutputTensor("Y", datatype, shape, bytes(size))])
        assert (plain_answer(response, ALL_JSON, b"", 0) is not None) is is_written


def test_classes_are_left_to_python():
    response = InferResponse("m", 1, "", [OutputTensor("Y", "FP32", [2], bytes(8))])
    assert plain_answer(response, OutputOptions(True, classes={"Y": 1}), b"", 0) is None


def test_an_answer_refers_to_contents_that_are_not_joined():
    contents = memoryview(bytes(8))
    response = InferResponse("m", 1, "", [OutputTensor("Y", "FP32", [2], contents)])
    whole, length, lead = plain_answer(response, ALL_BINARY, b"", 1000)
    parts, _, _ = plain_answer(response, ALL_BINARY, b"", length - 1)
    assert parts[1] is contents
    assert b"".join(parts) == whole[0]
    assert (len(whole), length) == (1, lead + 8)


@pytest.mark.parametrize("outputs", [None, (), [None], [OutputTensor("Y", "FP32", None, b"")]])
@pytest.mark.parametrize("options", [ALL_BINARY, ALL_JSON])
def test_what_is_no_answer(outputs, options):
    with pytest.raises((TypeError, AttributeError)):
        write_answer(InferResponse("m", 1, "", outputs), b"", options, b"", 0)


def test_what_are_no_options():
    with pytest.raises(AttributeError):
        write_document(InferResponse("m", 1, "", []), b"", None)
    assert write_document(InferResponse("m", 1, "", []), b"", OutputOptions(True, [])) is None

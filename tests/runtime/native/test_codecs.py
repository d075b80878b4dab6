# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Native code reads plain requests as the reference does, or leaves them to it.

The examples are near the border of what is accepted: what clients send, with one thing more, less, twice or otherwise.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from tritonclient import grpc
from tritonclient.grpc._utils import _get_inference_request as get_inference_request
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

from pyruntime.runtime.config.inputs import STRINGS_AT_ONCE_BYTES_MAX
from pyruntime.runtime.config.spec import TensorSpec
from pyruntime.runtime.frontends.grpc.schema import ModelInferRequest
from pyruntime.runtime.frontends.http.request_head import HeadReader, read_plain
from pyruntime.runtime.inference.plain_requests import PlainRequests
from pyruntime.runtime.native._codecs import InferReader, PlainHeadReader
from pyruntime.runtime.settings import Restriction

from ..model_specs import BARE_SPEC
from .json_values import mostly
from .plain_bodies import (
    ADDRESS,
    ALONE,
    BATCHING,
    FLOATS,
    check_request_is_read_as_by_the_reference,
    inputs,
    read,
    requests,
    with_another_byte,
)
from .plain_heads import REFERENCE, ParsingReader, read_by_reference
from .plain_messages import assert_alike, message_reference, read_message

# --- heads


PLAIN_HEAD = (
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost:8000\r\nContent-Length: 160\r\n"
    b"Inference-Header-Content-Length: 96\r\n\r\n"
)
REQUEST_LINES = [
    b"POST /v2/models/m/infer HTTP/1.1",
    b"POST /v2/models/m/versions/3/infer HTTP/1.1",
    b"POST /v2/models/m/generate HTTP/1.1",
    b"POST /v2/models/m%20n/generate_stream HTTP/1.1",
    b"POST /v2/models/versions/infer HTTP/1.1",
    b"POST /v2/models/m/versions/infer HTTP/1.1",
    b"POST /v2/models/m/versions/0/infer HTTP/1.1",
    b"POST /v2/models/m/versions/007/infer HTTP/1.1",
    b"POST /v2/models/m/versions/999999999999999999/infer HTTP/1.1",
    b"POST /v2/models/m/versions/9999999999999999999/infer HTTP/1.1",
    b"POST /v2/models/%b/infer HTTP/1.1" % (b"m" * 600),
    b"POST /v2/models/m/infer/ HTTP/1.1",
    b"POST /v2/models/m/ready HTTP/1.1",
    b"POST /v2/models/m HTTP/1.1",
    b"GET /v2/models/m/infer HTTP/1.1",
    b"POST /v2/models/m/infer?a=1 HTTP/1.1",
    b"POST /v2/models//infer HTTP/1.1",
    b"POST /v2/models/m/versions/x/infer HTTP/1.1",
    b"POST http://host/v2/models/m/infer HTTP/1.1",
    b"POST /v2/models/m/infer HTTP/1.0",
    b"POST  /v2/models/m/infer HTTP/1.1",
    b"POST /v2/models/m/infer  HTTP/1.1",
    b"POST /v2/models/m/infer",
    b"post /v2/models/m/infer HTTP/1.1",
    b"PUT /v2/models/m/infer HTTP/1.1",
    b"POST /v2/models/m/load HTTP/1.1",
    b"",
]
NAMES = [
    b"Host",
    b"Accept",
    b"User-Agent",
    b"Content-Type",
    b"Content-Length",
    b"content-length",
    b"Inference-Header-Content-Length",
    b"Accept-Encoding",
    b"Content-Encoding",
    b"Transfer-Encoding",
    b"Connection",
    b"Proxy-Connection",
    b"Expect",
    b"Upgrade",
    b"Traceparent",
    b"endpoint-load-metrics-format",
    b"X-Other",
    b"Origin",
    b"A b",
    b"A(",
    b"",
]
VALUES = [
    b"1",
    b"007",
    b"999999999999999999",
    b"1000000000000000000",
    b"-1",
    b"+1",
    b"0x10",
    b"1, 1",
    b"",
    b"*/*",
    b"gzip, deflate",
    b"br ,\tDeflate, gzip",
    b"identity, gzip",
    b"gzip;q=0.5, deflate",
    b"*",
    b"br,,",
    b"identity",
    b"chunked",
    b"keep-alive",
    b"Keep-Alive",
    b"close",
    b"keep-alive, close",
    b"100-continue",
    b"h2c",
    b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    b"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
    b"00-x",
    b"json",
    b"a\tb",
    b"a\x00b",
    b"\xc3\xa9",
    b"a\x7fb",
    b"a\rb",
    b"a\nb",
]
BLANKS = [b"", b" ", b"\t", b"  ", b" \t "]
LINES = st.builds(
    lambda name, before, colon, after, value, behind: name + before + colon + after + value + behind,
    st.sampled_from(NAMES),
    st.sampled_from([b"", b"", b"", b" "]),
    st.sampled_from([b":", b":", b":", b"", b"::"]),
    st.sampled_from(BLANKS),
    st.sampled_from(VALUES),
    st.sampled_from(BLANKS),
)


USUAL = st.sampled_from([b"Host: h", b"Content-Length: 8", b"Accept: */*", b"Connection: keep-alive", b"X:y"])


@st.composite
def heads(draw):
    """A head whose parts are mostly right: with more than one odd part hardly any would be accepted."""
    lines = [draw(mostly(st.sampled_from(REQUEST_LINES[:4]), st.sampled_from(REQUEST_LINES), rare=3))]
    for _ in range(draw(st.integers(0, 4))):
        lines.append(draw(mostly(USUAL, LINES, rare=3)))
    ends = mostly(st.just(b"\r\n"), st.sampled_from([b"\n", b"\r", b"\r\n "]))
    head = b"".join(line + draw(ends) for line in lines) + b"\r\n"
    return draw(with_another_byte(head))


@given(heads())
@example(PLAIN_HEAD)
@example(PLAIN_HEAD.replace(b"HTTP/1.1", b"HTTP/1.0"))
@example(PLAIN_HEAD[:-2] + b"Content-Encoding: gzip\r\ncontent-encoding: gzip\r\n\r\n")
@example(PLAIN_HEAD[:-2] + b"Expect: 100-continue\r\nexpect: 100-continue\r\n\r\n")
def test_a_head_is_read_as_the_reference_does(head):
    """Native code accepts no head that the reference refuses, and reads none otherwise."""
    # What the server takes for a head ends with its first empty line.
    head = head[: head.find(b"\r\n\r\n") + 4]
    plain = read_plain(head) if head.endswith(b"\r\n\r\n") else None
    event(f"is plain: {plain is not None}")
    if plain is not None:
        assert plain == read_by_reference(head)._replace(is_plain=True)


@pytest.mark.parametrize(
    "more",
    [
        b"",
        b"Connection: keep-alive\r\n",
        b"User-Agent: geventhttpclient\r\nAccept: */*\r\nContent-Type: application/octet-stream\r\n",
        b"Accept-Encoding: gzip, deflate\r\n",
        b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n",
        b"X-Request-Id: %b\r\n" % (b"9" * 200),
    ],
)
def test_heads_of_clients_are_plain(more):
    """Those of Triton's clients, curl, requests, aiohttp and wrk, with other headers and with a span."""
    head = PLAIN_HEAD[:-2] + more + b"\r\n"
    plain = read_plain(head)
    assert plain is not None
    assert plain == read_by_reference(head)._replace(is_plain=True)
    assert (plain.content_length, plain.header_length) == (160, 96)


ODD_HEADS = [
    (b"Content-Encoding: GZip\r\n", {"encoding": "gzip"}),
    (b"Content-Encoding: identity\r\n", {}),
    (b"Expect: 100-Continue\r\n", {"expects_continue": True}),
    (b"Connection: close\r\n", {"keep_alive": False}),
    (b"Endpoint-Load-Metrics-Format: JSON\r\n", {"load_format": "json"}),
]
OLD_HEADS = [
    (b"infer", b"", {}),
    (b"infer", b"Connection: close\r\n", {}),
    (b"infer", b"Connection: Keep-Alive\r\n", {"asks_to_stay": True}),
    (b"generate", b"Connection: Keep-Alive\r\n", {"asks_to_stay": True}),
    (b"generate_stream", b"Connection: Keep-Alive\r\n", {}),
]


@pytest.mark.parametrize(("more", "expected"), ODD_HEADS)
def test_heads_that_say_more_are_plain(more, expected):
    """Bodies that are compressed or come later, the last request of a connection, and those for load reports."""
    head = PLAIN_HEAD[:-2] + more + b"\r\n"
    plain = read_plain(head)
    assert plain == read_by_reference(head)._replace(is_plain=True)
    assert plain == read_plain(PLAIN_HEAD)._replace(**expected)


@pytest.mark.parametrize(("action", "more", "expected"), OLD_HEADS)
def test_heads_of_http_1_0_are_plain(action, more, expected):
    head = PLAIN_HEAD.replace(b"/infer HTTP/1.1", b"/%b HTTP/1.0" % action)
    assert head != PLAIN_HEAD
    head = head[:-2] + more + b"\r\n"
    plain = read_plain(head)
    assert plain == read_by_reference(head)._replace(is_plain=True)
    assert plain is not None
    assert plain.asks_to_stay == expected.get("asks_to_stay", False)


@pytest.mark.parametrize("more", [b"Connection: Upgrade\r\n", b"Connection: close\r\nConnection: keep-alive\r\n"])
@pytest.mark.parametrize("again", [False, True])
def test_heads_with_other_values_are_left_to_the_reference(more, again):
    head = PLAIN_HEAD[:-2] + more * (1 + again) + b"\r\n"
    assert read_plain(head) is None


def test_a_load_report_needs_the_api_of_statistics():
    """Whoever asks for one where that is restricted is read by the reference, which does not give it."""
    head = PLAIN_HEAD[:-2] + b"Endpoint-Load-Metrics-Format: json\r\n\r\n"
    reader = HeadReader({"statistics": Restriction("x-other", "1")})
    assert reader.read(head).load_format == ""
    assert reader.read(head[:-2] + b"X-Other: 1\r\n\r\n").load_format == "json"
    reader = HeadReader({"inference": Restriction("x-other", "1")})
    assert reader.read(head[:-2] + b"X-Other: 1\r\n\r\n").load_format == "json"


CHECKS = {"restrictions": {"inference": Restriction("x-other", "*/*")}, "pattern": "^x|^host"}


@given(heads(), mostly(st.just(b"X-Other: */*\r\n"), st.sampled_from([b"x-other:*/*\r\nX-OTHER: 1\r\n", b""]), rare=3))
@example(PLAIN_HEAD, b"X-Other: */*\r\n")
def test_a_head_is_read_as_the_reference_does_where_all_headers_count(head, more):
    """With a restricted API and a pattern of forwarded headers."""
    head = head[: head.find(b"\r\n\r\n") + 4]
    line, end, rest = head.partition(b"\r\n")
    head = line + end + more + rest
    plain = HeadReader(**CHECKS)._read_checked(head) if head.endswith(b"\r\n\r\n") else None
    event(f"is plain: {plain is not None}")
    if plain is not None:
        assert plain == ParsingReader(**CHECKS).read(head)


def test_heads_of_clients_are_plain_where_all_headers_count():
    head = PLAIN_HEAD[:-2] + b"X-Other: */*\r\n\r\n"
    plain = HeadReader(**CHECKS)._read_checked(head)
    assert plain is not None
    assert plain.forwarded == (("Host", "localhost:8000"), ("X-Other", "*/*"))


def test_a_head_that_ends_early_is_no_head():
    """However much of it there is."""
    for end in range(len(PLAIN_HEAD)):
        assert read_plain(PLAIN_HEAD[:end]) is None


# --- requests


@pytest.mark.parametrize(
    ("spec", "names", "shape"),
    [
        (BATCHING, ["FLOATS", "FIXED", "TEXTS"], lambda name: [2, 2]),
        (BATCHING, ["FLOATS", "TEXTS", "OTHER"], lambda name: [1, 1]),
        (ALONE, ["FLOATS", "TEXTS"], lambda name: [3]),
    ],
    ids=["batching", "unknown", "alone"],
)
@given(data=st.data())
def test_a_request_is_read_as_the_reference_does(spec, names, shape, data):
    """Native code accepts no request that the reference refuses, and reads none otherwise."""
    body, length = data.draw(requests(names, shape))
    event(f"is plain: {check_request_is_read_as_by_the_reference(spec, body, length)}")


def infer_body(inputs, outputs=None, **options):
    body, length = InferenceServerClient.generate_request_body(inputs, outputs=outputs, **options)
    return body, length


def binary(name, array, datatype):
    tensor = InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


ONE = np.ones((2, 3), np.float32)
WORDS = np.array([[b"a", "ü".encode()], [b"", b"long" * 100]], dtype=object)


@pytest.mark.parametrize(
    ("outputs", "options", "is_binary"),
    [
        (None, {}, True),
        ([InferRequestedOutput("Y")], {}, True),
        ([InferRequestedOutput("Y", binary_data=False)], {}, False),
        (None, {"request_id": "7"}, True),
        (None, {"sequence_id": 9, "sequence_start": True, "priority": 2, "timeout": 5}, True),
        (None, {"sequence_id": "nine", "sequence_end": True}, True),
        (None, {"parameters": {"own": "text", "number": 3, "flag": False}}, True),
    ],
)
def test_requests_of_clients_are_plain(outputs, options, is_binary):
    """Those of Triton's Python client, with numbers and texts, and with its options."""
    body, length = infer_body([binary("TEXTS", WORDS, "BYTES"), binary("FLOATS", ONE, "FP32")], outputs, **options)
    assert check_request_is_read_as_by_the_reference(BATCHING, body, length)
    plain, _ = read(BATCHING, body, length)
    assert (plain.rows, plain.binary) == (2, is_binary)


def test_a_request_that_ends_early_is_not_plain():
    """Wherever it ends, in the document or behind it."""
    body, length = infer_body([binary("FLOATS", ONE, "FP32")])
    for end in range(len(body)):
        assert read(BATCHING, body[:end], min(length, end)) is None
    for end in range(length):
        assert read(BATCHING, body, end) is None


def test_more_strings_than_native_code_counts_are_left_to_a_thread():
    """So that the event loop waits for no request."""
    words = np.full((1, STRINGS_AT_ONCE_BYTES_MAX // 4 + 1), b"", dtype=object)
    body, length = infer_body([binary("FLOATS", ONE[:1], "FP32"), binary("TEXTS", words, "BYTES")])
    assert read(BATCHING, body, length) is None
    body, length = infer_body([binary("FLOATS", ONE[:1], "FP32"), binary("TEXTS", words[:, 1:], "BYTES")])
    assert read(BATCHING, body, length) is not None


@pytest.mark.parametrize(
    "spec",
    [
        replace(BATCHING, inputs={"FLOATS": replace(FLOATS, reshape=(1, 1))}),
        replace(BATCHING, inputs={f"X{number}": replace(FLOATS, name=f"X{number}") for number in range(65)}),
        replace(BATCHING, outputs={f"Y{number}": FLOATS for number in range(65)}),
        replace(BATCHING, inputs={"FLOATS": replace(FLOATS, shape=(-1,) * 33)}),
    ],
    ids=["reshape", "inputs", "outputs", "dimensions"],
)
def test_models_without_plain_requests(spec):
    """Those that see inputs otherwise than clients send them, and those with more tensors than native code reads."""
    body, length = infer_body([binary("FLOATS", ONE, "FP32")])
    assert read(spec, body, length) is None


# --- messages of gRPC


INT64 = st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)])
PLAIN_CHOICES = st.one_of(
    st.fixed_dictionaries({"int64_param": INT64}),
    st.fixed_dictionaries({"bool_param": st.booleans()}),
    st.fixed_dictionaries({"string_param": st.sampled_from(["", "a", "é", '"', "\\", "a" * 128, "a" * 129])}),
)
CHOICES = st.one_of(
    PLAIN_CHOICES,
    st.fixed_dictionaries({"double_param": st.just(1.5)}),
    st.fixed_dictionaries({"uint64_param": st.sampled_from([0, 2**64 - 1])}),
    st.just({}),
)
RIGHT = {
    "sequence_id": st.one_of(
        st.fixed_dictionaries({"int64_param": INT64}),
        st.fixed_dictionaries({"string_param": st.sampled_from(["a", "a" * 128])}),
    ),
    "sequence_start": st.fixed_dictionaries({"bool_param": st.booleans()}),
    "sequence_end": st.fixed_dictionaries({"bool_param": st.booleans()}),
    "priority": st.fixed_dictionaries({"uint64_param": st.just(3)}),
    "timeout": st.fixed_dictionaries({"int64_param": INT64}),
    "own": PLAIN_CHOICES,
    "more": PLAIN_CHOICES,
    "binary_data_output": PLAIN_CHOICES,
}


@st.composite
def messages(draw, names, shape):
    message = ModelInferRequest(model_name="m", id=draw(st.sampled_from(["", "7", "é"])))
    count = draw(mostly(st.integers(2, len(names)), st.just(1), rare=4))
    for name in draw(st.permutations(names[:count])):
        described, contents = draw(inputs(name, shape(name)))
        described = dict(described)
        entry = message.inputs.add()
        if isinstance(described.get("name"), str):
            entry.name = described["name"]
        if isinstance(described.get("datatype"), str):
            entry.datatype = described["datatype"]
        dims = described.get("shape")
        entry.shape.extend(dim for dim in dims if type(dim) is int and dim < 2**63) if isinstance(dims, list) else None
        if draw(mostly(st.just(False), st.just(True))):
            entry.parameters[draw(st.sampled_from(["a", "shared_memory_offset"]))].int64_param = 1
        if draw(mostly(st.just(True), st.just(False))):
            message.raw_input_contents.append(contents)
    if draw(mostly(st.just(False), st.just(True))):
        message.raw_input_contents.append(b"")
    named = st.lists(st.sampled_from(["Y", "Z"]), max_size=2, unique=True)
    for name in draw(mostly(named, st.sampled_from([["Y", "Y"], ["W"]]), rare=9)):
        output = message.outputs.add(name=name)
        if draw(mostly(st.just(False), st.just(True), rare=10)):
            output.parameters["classification"].int64_param = 2
    if draw(st.booleans()):
        for name in draw(st.lists(st.sampled_from(sorted(RIGHT)), unique=True)):
            for kind, value in draw(mostly(RIGHT[name], CHOICES)).items():
                setattr(message.parameters[name], kind, value)
    serialized = message.SerializeToString()
    return draw(mostly(st.just(serialized), with_another_byte(serialized), rare=3))


@pytest.mark.parametrize(
    ("spec", "names", "shape"),
    [(BATCHING, ["FLOATS", "FIXED", "TEXTS"], lambda name: [2, 2]), (ALONE, ["FLOATS", "TEXTS"], lambda name: [3])],
    ids=["batching", "alone"],
)
@given(data=st.data())
def test_a_message_is_read_as_the_reference_does(spec, names, shape, data):
    """Native code accepts no message that the reference refuses, and reads none otherwise."""
    message = data.draw(messages(names, shape))
    read = read_message(spec, message)
    event(f"is plain: {read[0] is not None}")
    if read[0] is not None:
        assert_alike(read, message_reference(message, spec))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"outputs": [grpc.InferRequestedOutput("Y")]},
        {"request_id": "7", "sequence_id": 9, "sequence_start": True, "priority": 2, "timeout": 5},
        {"sequence_id": "nine", "sequence_end": True},
        {"parameters": {"own": "text", "number": -3, "flag": False}},
    ],
    ids=["plain", "outputs", "sequence", "name", "parameters"],
)
def test_messages_of_clients_are_plain(options):
    """Those of Triton's Python client, with numbers and texts, and with its options."""
    tensors = [grpc.InferInput(name, [2, 3], kind) for name, kind in (("FLOATS", "FP32"), ("TEXTS", "BYTES"))]
    tensors[0].set_data_from_numpy(ONE)
    tensors[1].set_data_from_numpy(np.full((2, 3), b"word", dtype=object))
    defaults = {"outputs": None, "request_id": "", "sequence_id": 0, "sequence_start": False, "sequence_end": False}
    defaults |= {"priority": 0, "timeout": None, "parameters": None}
    message = get_inference_request(
        inputs=tensors, model_name="m", model_version="", **(defaults | options)
    ).SerializeToString()
    read = read_message(BATCHING, message)
    assert read[0] is not None
    assert_alike(read, message_reference(message, BATCHING))


# Of each datatype the member that has its contents, and numbers at the border of its range.
MEMBERS = {
    "BOOL": ("bool_contents", [False, True]),
    "INT8": ("int_contents", [-128, 127, 0, 1, -1, 2, 128, -129, 2**31 - 1]),
    "INT16": ("int_contents", [-(2**15), 2**15 - 1, 0, 1, -1, 2**15]),
    "INT32": ("int_contents", [-(2**31), 2**31 - 1, 0]),
    "INT64": ("int64_contents", [-(2**63), 2**63 - 1, -1]),
    "UINT8": ("uint_contents", [0, 255, 1, 2, 128, 256]),
    "UINT16": ("uint_contents", [0, 2**16 - 1, 1, 2, 128, 2**16]),
    "UINT32": ("uint_contents", [0, 2**32 - 1]),
    "UINT64": ("uint64_contents", [0, 2**64 - 1]),
    "FP32": ("fp32_contents", [0.0, -0.0, math.inf, math.nan, 1e-45]),
    "FP64": ("fp64_contents", [0.0, -0.0, math.inf, math.nan, 5e-324]),
    "BYTES": ("bytes_contents", [b"", b"a", b"\xff" * 300]),
}


@st.composite
def typed_messages(draw, datatype):
    """A message with typed contents, mostly of the datatype that it names."""
    message = ModelInferRequest(model_name="m", model_version=draw(mostly(st.just("1"), st.sampled_from(["01", "0"]))))
    for name in draw(st.permutations(["A", "B"])):
        entry = message.inputs.add(name=name, datatype=datatype)
        member, values = MEMBERS[draw(mostly(st.just(datatype), st.sampled_from(sorted(MEMBERS))))]
        elements = draw(st.lists(st.sampled_from(values), max_size=4))
        entry.shape.append(draw(mostly(st.just(len(elements)), st.just(3))))
        getattr(entry.contents, member).extend(elements)
        if draw(mostly(st.just(False), st.just(True))):
            entry.contents.int64_contents.append(7)
        if draw(mostly(st.just(False), st.just(True))):
            message.raw_input_contents.append(b"")
    serialized = message.SerializeToString()
    return draw(mostly(st.just(serialized), with_another_byte(serialized), rare=3))


def spec_of(datatype):
    tensors = {name: TensorSpec(name, datatype, (-1,), (-1,)) for name in ("A", "B")}
    return replace(BARE_SPEC, inputs=tensors, required_inputs=frozenset(tensors), max_batch_size=0)


@pytest.mark.parametrize("datatype", MEMBERS)
@given(data=st.data())
def test_typed_contents_are_read_as_the_reference_does(datatype, data):
    """Native code accepts none that the reference refuses, and places them alike."""
    spec, message = spec_of(datatype), data.draw(typed_messages(datatype))
    read = read_message(spec, message)
    event(f"is plain: {read[0] is not None}")
    if read[0] is not None:
        assert_alike(read, message_reference(message, spec))


@pytest.mark.parametrize("datatype", MEMBERS)
def test_typed_contents_of_clients_are_plain(datatype):
    member, values = MEMBERS[datatype]
    message = ModelInferRequest(model_name="m", id="7")
    for name in ("A", "B"):
        entry = message.inputs.add(name=name, datatype=datatype, shape=[2])
        getattr(entry.contents, member).extend(values[:2])
    message = message.SerializeToString()
    read = read_message(spec_of(datatype), message)
    assert read[0] is not None
    assert_alike(read, message_reference(message, spec_of(datatype)))


def test_a_message_that_ends_early_is_not_plain():
    """Wherever it ends: what is in front of the end is not taken for all of it."""
    message = ModelInferRequest(model_name="m", raw_input_contents=[bytes(24)])
    message.inputs.add(name="FLOATS", datatype="FP32", shape=[2, 3])
    message = message.SerializeToString()
    assert read_message(BATCHING, message)[0] is not None
    for end in range(len(message)):
        assert read_message(BATCHING, message[:end])[0] is None


def test_memory_that_is_too_short_is_not_written_behind_its_end():
    message = ModelInferRequest(model_name="m", raw_input_contents=[b"x" * 24])
    message.inputs.add(name="FLOATS", datatype="FP32", shape=[2, 3])
    memory = bytearray(24)
    with memoryview(memory) as view:
        reader = PlainRequests(BATCHING)
        assert reader.read_message("", message.SerializeToString(), view[:23], ADDRESS) is None
    assert memory == bytes(24)


class TestPlainHeadReader:
    @pytest.mark.parametrize("heads", [[], {"infer": ()}, {"infer": ((),) * 15}, {1: REFERENCE.read(PLAIN_HEAD)}])
    def test_other_types(self, heads):
        """What is no head is not taken for one."""
        with pytest.raises(TypeError):
            PlainHeadReader(heads)


class TestInferReader:
    """Wrong arguments are exceptions, and nothing is read behind the end."""

    def test_too_many_inputs(self):
        with pytest.raises(ValueError, match="65 items, expected at most 64"):
            InferReader([("X", "FP32", 4, (1,), True)] * 65, [], 0)

    @pytest.mark.parametrize(
        "arguments", [([1], [], 0), ([("X", "FP32", 4, "a", True)], [], 0), ([], [1], 0), (1, 2, 3)]
    )
    def test_other_types(self, arguments):
        with pytest.raises(TypeError):
            InferReader(*arguments)

    @pytest.mark.parametrize("arguments", [(), ("", 1, bytearray(), 0), ("", b"", b"", "a")])
    def test_other_types_of_a_message(self, arguments):
        with pytest.raises(TypeError):
            InferReader([], [], 0).read_message(*arguments)

    def test_memory_that_cannot_be_written(self):
        with pytest.raises(BufferError):
            InferReader([], [], 0).read_message("", b"", b"", 0)

    @pytest.mark.parametrize("arguments", [(), (b"",), (b"", "a", 0, 0), (1, 0, 0, 0), (b"", 0, "a", 0)])
    def test_other_types_of_a_request(self, arguments):
        with pytest.raises(TypeError):
            InferReader([], [], 0).read_document(*arguments)

    def test_a_document_longer_than_the_body(self):
        assert InferReader([], [], 0).read_document(b'{"inputs":[]}', 14, 0, None) is None
        assert InferReader([], [], 0).read_document(b'{"inputs":[]}', 13, 0, None) is not None

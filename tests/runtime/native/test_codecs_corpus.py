# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What fuzzers of codecs have found to reach different code, native code reads as the reference does, or leaves to it.

The fuzzers are in tests/native/fuzz, with the form of their inputs and the models whose requests they read.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError

from pyruntime.runtime.config.spec import TensorSpec
from pyruntime.runtime.frontends.grpc.head import HeadReader
from pyruntime.runtime.frontends.grpc.schema import ModelInferRequest
from pyruntime.runtime.frontends.http.kserve_request import ALL_JSON
from pyruntime.runtime.frontends.http.kserve_response import encode_any
from pyruntime.runtime.frontends.http.request_head import read_plain
from pyruntime.runtime.native._codecs import read_call, write_document
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.dtypes import BY_NAME, DATATYPES

from ..model_specs import BARE_SPEC
from . import plain_generate
from .plain_bodies import ALONE, BATCHING, check_request_is_read_as_by_the_reference
from .plain_heads import read_by_reference
from .plain_messages import assert_alike, message_reference, read_message

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "tests" / "corpus" / "codecs"
EVERY_DATATYPE = replace(
    BARE_SPEC,
    inputs={each.name: TensorSpec(each.name, each.name, (-1, -1), (-1, -1), optional=True) for each in DATATYPES},
    outputs={},
    required_inputs=frozenset(),
    max_batch_size=0,
)
# The models of tests/native/fuzz/requests.h.
MODELS = [BATCHING, ALONE, EVERY_DATATYPE]
# The datatypes of tests/native/fuzz/contents.cc, and the members that hold their contents.
MEMBER_OF = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
DATATYPES_WITH_MEMBERS = list(MEMBER_OF)
# Those of tests/native/fuzz/responses.cc.
DATATYPES_OF_RESPONSES = [*MEMBER_OF, "FP16"]


def check_head(head):
    # What the server takes for a head ends with its first empty line.
    head = head[: head.find(b"\r\n\r\n") + 4]
    plain = read_plain(head) if head.endswith(b"\r\n\r\n") else None
    if plain is not None:
        assert plain == read_by_reference(head)._replace(is_plain=True)
    return plain is not None


def check_call(packed):
    plain = read_call(packed)
    if plain is not None:
        assert plain == HeadReader().read_any(packed)
    return plain is not None


def check_document(data):
    choice, body = data[:3], data[3:]
    if len(choice) < 3:
        return False
    binary = min(int.from_bytes(choice[1:], "little"), len(body))
    return check_request_is_read_as_by_the_reference(MODELS[choice[0] % len(MODELS)], body, len(body) - binary)


def check_generate(data):
    return bool(data) and plain_generate.is_plain(MODELS[data[0] % len(MODELS)], data[1:])


def check_message(data):
    if not data:
        return False
    spec, message = MODELS[data[0] % len(MODELS)], data[1:]
    read = read_message(spec, message)
    if read[0] is not None:
        assert_alike(read, message_reference(message, spec))
    return read[0] is not None


def check_contents(data):
    """Typed contents of the only input of a message."""
    if not data:
        return False
    datatype = DATATYPES_WITH_MEMBERS[data[0] % len(DATATYPES_WITH_MEMBERS)]
    message = ModelInferRequest()
    entry = message.inputs.add(name=datatype, datatype=datatype)
    with suppress(DecodeError):
        entry.shape[:] = [len(getattr(entry.contents.FromString(data[1:]), MEMBER_OF[datatype])), 1]
    part = entry.SerializeToString() + b"\x2a" + varint(len(data) - 1) + data[1:]
    return check_message(b"\x02\x2a" + varint(len(part)) + part)


def check_response(data):
    """An output in a document, which has the text for its name and the id of the request."""
    if len(data) < 3:
        return False
    datatype, surplus, length = DATATYPES_OF_RESPONSES[data[0] % len(DATATYPES_OF_RESPONSES)], data[1], data[2]
    text, contents = data[3 : 3 + length], data[3 + length :]
    count = len(strings_in(contents)) if datatype == "BYTES" else len(contents) // BY_NAME[datatype].size
    try:
        text = text.decode()
    except UnicodeDecodeError:
        return False
    outputs = [OutputTensor(text, datatype, [count + (surplus == 1)], memoryview(contents))]
    response = InferResponse(text, 1, text, outputs)
    document = write_document(response, b"", ALL_JSON)
    if document is not None:
        assert document == encode_any(response, ALL_JSON)
    return document is not None


def strings_in(contents):
    """Those that are complete, each with its length before it."""
    found = []
    while len(contents) >= 4 and len(contents) >= (end := 4 + int.from_bytes(contents[:4], "little")):
        found.append(contents[4:end])
        contents = contents[end:]
    return found


def varint(number):
    """Of two bytes."""
    assert number < 1 << 14
    return bytes([number & 0x7F | 0x80, number >> 7])


CHECKS = {
    "call": check_call,
    "contents": check_contents,
    "document": check_document,
    "generate": check_generate,
    "head": check_head,
    "message": check_message,
    "responses": check_response,
}
FILES = [(codec, path) for codec in CHECKS for path in sorted((CORPUS / codec).iterdir())]


@pytest.mark.parametrize(("codec", "path"), FILES, ids=[f"{codec}-{path.name}" for codec, path in FILES])
def test_a_file_of_the_corpus_is_read_as_the_reference_does(codec, path):
    CHECKS[codec](path.read_bytes())


@pytest.mark.parametrize("codec", CHECKS)
def test_a_corpus_has_what_is_read_and_what_is_not(codec):
    """With only one of them it would show nothing."""
    read = {CHECKS[codec](path.read_bytes()) for path in (CORPUS / codec).iterdir()}
    assert read == {True, False}


def test_each_fuzzer_has_a_corpus_here():
    assert {path.stem for path in (ROOT / "tests" / "native" / "fuzz").glob("*.cc")} == set(CHECKS)

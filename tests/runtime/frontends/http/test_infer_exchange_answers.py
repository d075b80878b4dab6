# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Responses with classes, documents and compression together, and their cost."""

import gzip
import json
import struct

import pytest

from pyruntime.runtime.frontends.http.infer_exchange import costs_time, make_answer
from pyruntime.runtime.frontends.http.kserve_request import ALL_BINARY, ALL_JSON, OutputOptions
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.errors import InferenceError

from ...model_specs import spec_from

CONFIG = (
    "name: 'm' input { name: 'IN' data_type: TYPE_FP32 dims: -1 } output { name: 'A' data_type: TYPE_FP32 dims: -1 }"
)
SPEC = spec_from(CONFIG)
CONTENTS = struct.pack("<2f", 1, 2)
RESPONSE = InferResponse("m", 1, "", [OutputTensor(name, "FP32", [2], memoryview(CONTENTS)) for name in "AB"])


def mixed(**classes):
    """B is binary."""
    return OutputOptions(default_binary=False, binary={"B": True}, classes=classes)


def outputs(document):
    return json.loads(document)["outputs"]


def test_as_it_is():
    """Contents are not copied where there is no need."""
    length, parts, encoding = make_answer(RESPONSE, ALL_BINARY, SPEC, "")
    assert (length, encoding) == (len(parts[0]), "")
    assert all(part is output.data for part, output in zip(parts[1:], RESPONSE.outputs, strict=True))


def test_classes():
    """They are strings, sent as any other contents would be."""
    length, parts, _ = make_answer(RESPONSE, mixed(A=1, B=1), SPEC, "")
    a, b = outputs(parts[0])
    assert a == {"name": "A", "datatype": "BYTES", "shape": [1], "data": ["2.000000:1"]}
    assert (b["datatype"], b["shape"], parts[1:]) == ("BYTES", [1], [b"\x0a\0\0\0" + b"2.000000:1"])
    assert length == len(parts[0])


def test_compressed():
    """All of the body is compressed, and the header length is that of the uncompressed document."""
    length, parts, encoding = make_answer(RESPONSE, mixed(), SPEC, "gzip")
    body = gzip.decompress(b"".join(parts))
    assert (encoding, outputs(body[:length])[0]["data"], body[length:]) == ("gzip", [1, 2], CONTENTS)
    length, parts, _ = make_answer(RESPONSE, ALL_JSON, SPEC, "gzip")
    assert (length, len(outputs(gzip.decompress(parts[0])))) == (0, 2)


@pytest.mark.parametrize("options", [ALL_JSON, OutputOptions(True, classes={"A": 1})])
def test_refused(options):
    """An output that has no JSON form, or no classes, is refused."""
    response = InferResponse("m", 1, "", [OutputTensor("A", "FP16", [1], b"ab")])
    with pytest.raises(InferenceError, match="FP16"):
        make_answer(response, options, SPEC, "")


def test_cost():
    """Contents that are sent as they are cost nothing."""
    size = len(CONTENTS)
    for options, encoding, nbytes in (
        (ALL_BINARY, "", 0),
        (mixed(), "", size),
        (mixed(B=1), "", 2 * size),
        (ALL_JSON, "", 2 * size),
        (ALL_BINARY, "gzip", 2 * size),
    ):
        assert not costs_time(RESPONSE, options, encoding, nbytes)
        assert costs_time(RESPONSE, options, encoding, nbytes - 1)

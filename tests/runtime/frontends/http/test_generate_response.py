# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import json
import math

import numpy as np
import pytest

from pyruntime.runtime.frontends.http.generate_response import encode_generate, event
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.byte_tensors import serialize_byte_tensor
from pyruntime.utils.errors import Code, InferenceError


def text(*values):
    return memoryview(serialize_byte_tensor(np.array([value.encode() for value in values], object)))


def numbers(*values):
    return memoryview(np.array(values, np.float32).tobytes())


def respond(*outputs, id="", **members):
    return InferResponse("m", 3, id, list(outputs), **members)


def test_one_element_is_a_value_and_more_are_a_list():
    """An output of any shape is a value or a flat list."""
    outputs = [
        OutputTensor("TEXT", "BYTES", [1, 1], text("é\n")),
        OutputTensor("TEXTS", "BYTES", [2], text("a", "")),
        OutputTensor("NONE", "FP32", [0], memoryview(b"")),
        OutputTensor("P", "FP32", [], numbers(0.5)),
        OutputTensor("PS", "FP32", [2, 1], numbers(1, 2)),
    ]
    assert json.loads(encode_generate(respond(*outputs, id="7"))) == {
        "id": "7", "model_name": "m", "model_version": "3",
        "TEXT": "é\n", "TEXTS": ["a", ""], "NONE": [], "P": 0.5, "PS": [1.0, 2.0],
    }  # fmt: skip


def test_parameters_stand_beside_outputs():
    """An output takes precedence over a parameter of its name; without an id in the request there is none."""
    output = OutputTensor("P", "FP32", [1], numbers(1))
    response = respond(output, parameters={"P": 5, "sequence_end": False, "why": "x"})
    assert encode_generate(response) == (
        b'{"model_name":"m","model_version":"3","P":1.0,"sequence_end":false,"why":"x"}'
    )


def test_parameters_with_names_of_the_server():
    """The server's own fields take precedence over parameters of the same names."""
    parameters = {"model_name": "x", "model_version": 9, "id": "none", "a": 1}
    assert encode_generate(respond(id="7", parameters=parameters)) == (
        b'{"id":"7","model_name":"m","model_version":"3","a":1}'
    )


def test_numbers_that_are_not_finite():
    """They are written as Triton writes them."""
    output = OutputTensor("P", "FP32", [1], numbers(math.nan))
    assert encode_generate(respond(output)) == b'{"model_name":"m","model_version":"3","P":NaN}'


@pytest.mark.parametrize(("datatype", "contents"), [("FP16", b"\0\0"), ("BYTES", b"\1\0\0\0\xff")])
def test_what_has_no_json_form(datatype, contents):
    """It is refused, by name."""
    with pytest.raises(InferenceError, match="output 'Y'") as caught:
        encode_generate(respond(OutputTensor("Y", datatype, [1], memoryview(contents))))
    assert caught.value.code is Code.INVALID_ARG


def test_an_event_is_one_line():
    """A document has no line breaks, for any contents, so that an event ends with its document."""
    document = encode_generate(respond(OutputTensor("T", "BYTES", [1], text("a\r\n\n\u2028b"))))
    lines = event(document).split(b"\n")
    assert lines == [b"data: " + document, b"", b""]
    assert b"\r" not in document

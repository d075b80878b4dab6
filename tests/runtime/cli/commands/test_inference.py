# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests and responses of inference."""

import json

import numpy as np
import pytest

from pyruntime.runtime.cli.commands.inference import (
    LENGTH_HEADER,
    decode_response,
    encode_generate,
    encode_request,
)
from pyruntime.runtime.cli.commands.tensors import TensorError, TensorSpec

SPECS = {"A": TensorSpec("A", "INT16", (-1,)), "T": TensorSpec("T", "BYTES", (-1,))}
ARRAYS = {"A": np.array([1, 2], "i2"), "T": np.array([b"x"], dtype=object)}


def response(document, contents=b""):
    head = json.dumps({"model_name": "m", "model_version": "2", **document}).encode()
    return {LENGTH_HEADER.lower(): str(len(head))}, head + contents


@pytest.mark.parametrize("outputs", [[], ["B", "C"]])
def test_request(outputs):
    """All tensors are binary, both ways; outputs are asked for by name, or all of them."""
    body, headers = encode_request(ARRAYS, SPECS, outputs)
    length = int(headers[LENGTH_HEADER])
    document = json.loads(body[:length])
    assert document["inputs"] == [
        {"name": "A", "shape": [2], "datatype": "INT16", "parameters": {"binary_data_size": 4}},
        {"name": "T", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 5}},
    ]
    assert document["parameters"] == {"binary_data_output": True}
    asked = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    assert document.get("outputs", []) == asked
    assert body[length:] == b"\1\0\2\0\1\0\0\0x"


def test_response():
    """Outputs may be binary or not; machines get the protocol's own JSON."""
    outputs = [
        {"name": "A", "datatype": "INT16", "shape": [1, 2], "parameters": {"binary_data_size": 4}},
        {"name": "J", "datatype": "FP32", "shape": [2, 1], "data": [0.5, 1]},
        {"name": "T", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}},
    ]
    found = decode_response(*response({"outputs": outputs}, b"\1\0\2\0\1\0\0\0x"))
    assert found.to_json() == {
        "model_name": "m",
        "model_version": "2",
        "outputs": [
            {"name": "A", "datatype": "INT16", "shape": [1, 2], "data": [[1, 2]]},
            {"name": "J", "datatype": "FP32", "shape": [2, 1], "data": [[0.5], [1.0]]},
            {"name": "T", "datatype": "BYTES", "shape": [1], "data": ["x"]},
        ],
    }


def test_response_without_outputs():
    """A response without binary tensors is JSON to its end."""
    headers, body = response({})
    for each in (headers, {}):
        assert decode_response(each, body).outputs == []


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, b""),
        ({}, b"{}"),
        ({}, b"[]"),
        ({LENGTH_HEADER.lower(): "x"}, b"{}"),
        response({"outputs": [{"name": "A", "datatype": "INT16", "shape": [1]}]}),
        response({"outputs": [{"name": "A", "datatype": "INT16", "shape": "x", "data": [1]}]}),
        response(
            {"outputs": [{"name": "A", "datatype": "INT16", "shape": [9], "parameters": {"binary_data_size": 18}}]}
        ),
    ],
)
def test_no_response(headers, body):
    """A body that is not a response raises one of the expected exceptions."""
    with pytest.raises((ValueError, KeyError, TypeError)):
        decode_response(headers, body)


def test_generate():
    """Streams are of JSON."""
    assert encode_generate(ARRAYS) == {"A": [1, 2], "T": ["x"]}
    with pytest.raises(TensorError, match="input 'T' is no UTF-8, and streams are of JSON"):
        encode_generate({"T": np.array([b"\xff"], dtype=object)})

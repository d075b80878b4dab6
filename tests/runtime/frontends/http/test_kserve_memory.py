# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests of HTTP whose tensors lie in the memory of clients, and the responses to them."""

import json
from dataclasses import replace

import pytest
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

from pyruntime.runtime.config.spec import TensorSpec
from pyruntime.runtime.frontends.http.kserve_request import ALL_JSON, OutputOptions, decode_infer
from pyruntime.runtime.frontends.http.kserve_response import encode_infer
from pyruntime.runtime.requests.types import ClientContents, InferResponse, InputTensor, OutputPlace, OutputTensor
from pyruntime.utils.errors import Code, InferenceError

from ...model_specs import BARE_SPEC

SPEC = replace(
    BARE_SPEC,
    inputs={"X": TensorSpec("X", "INT8", (-1,), (-1,))},
    outputs={"Y": TensorSpec("Y", "INT8", (-1,), (-1,))},
    required_inputs=frozenset({"X"}),
)


class Memory:
    """Stands for the memory of clients: every region is there."""

    def input(self, name, datatype, shape, region, offset, byte_size):
        return InputTensor(name, datatype, shape, b"", 7, ClientContents((region, offset), 7, byte_size))

    def output(self, region, offset, byte_size):
        return place(region, offset, byte_size)


def place(region, offset, byte_size):
    return OutputPlace(region, offset, byte_size, ClientContents(None, 7, byte_size))


def decode(body, length=None):
    return decode_infer(memoryview(body), length, SPEC, Memory())


def by_triton(inputs, outputs):
    """The body that tritonclient makes, decoded."""
    return decode(*InferenceServerClient.generate_request_body(inputs, outputs=outputs))


def placed_input(name, *arguments, shape=(4,)):
    tensor = InferInput(name, list(shape), "INT8")
    tensor.set_shared_memory(*arguments)
    return tensor


def placed_output(name, *arguments):
    output = InferRequestedOutput(name)
    output.set_shared_memory(*arguments)
    return output


def refusal(input=None, output=None):
    """The message of a request with these members of its input's, or its output's, parameters."""
    first = {"name": "X", "shape": [4], "datatype": "INT8", "parameters": input or {"shared_memory_region": "r"}}
    document = {"inputs": [first]}
    if output is not None:
        document["outputs"] = [{"name": "Y", "parameters": output}]
    with pytest.raises(InferenceError) as caught:
        decode(json.dumps(document).encode())
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


class TestRequest:
    @pytest.mark.parametrize("offset", [0, 8])
    def test_by_triton(self, offset):
        """As tritonclient says it."""
        request, options = by_triton([placed_input("X", "in", 4, offset)], [placed_output("Y", "out", 16, offset)])
        (tensor,) = request.inputs
        assert (tensor.name, tensor.shape, tensor.byte_size) == ("X", [4], 4)
        assert tensor.client.memory == ("in", offset)
        assert request.output_places == {"Y": place("out", offset, 16)}
        assert request.requested_outputs == ["Y"]
        assert options is ALL_JSON

    def test_beside_others(self):
        """Every tensor goes its own way."""
        binary = InferInput("B", [2], "INT8")
        binary._raw_data = b"ab"
        binary._parameters["binary_data_size"] = 2
        outputs = [InferRequestedOutput("P"), placed_output("Y", "r", 4), InferRequestedOutput("Q", binary_data=False)]
        request, options = by_triton([placed_input("X", "r", 4), binary], outputs)
        assert [tensor.client is None for tensor in request.inputs] == [False, True]
        assert bytes(request.inputs[1].data) == b"ab"
        assert list(request.output_places) == ["Y"]
        assert options == OutputOptions(False, {"P": True, "Y": False, "Q": False})

    def test_binary_by_default(self):
        """That is for those that are sent."""
        document = {
            "inputs": [],
            "outputs": [{"name": "Y", "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 4}}],
            "parameters": {"binary_data_output": True},
        }
        _, options = decode(json.dumps(document).encode())
        assert not options.is_binary("Y")

    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"shared_memory_region": 5}, "'shared_memory_region' of {} must be a string, got 5"),
            (
                {"shared_memory_region": "r", "shared_memory_byte_size": -1},
                "'shared_memory_byte_size' of {} must be an integer from 0 on, got -1",
            ),
            (
                {"shared_memory_region": "r", "shared_memory_byte_size": "4"},
                "'shared_memory_byte_size' of {} must be an integer from 0 on, got \"4\"",
            ),
            (
                {"shared_memory_region": "r", "shared_memory_byte_size": 4, "shared_memory_offset": True},
                "'shared_memory_offset' of {} must be an integer from 0 on, got true",
            ),
        ],
    )
    def test_place_that_is_none(self, parameters, message):
        """The parameter is named, and the tensor."""
        assert refusal(parameters) == message.format("input 'X'")
        assert refusal(output=parameters) == message.format("output 'Y'")

    @pytest.mark.parametrize(("member", "value"), [("binary_data", True), ("classification", 1), ("classification", 0)])
    def test_output_that_is_to_be_sent_too(self, member, value):
        """In Triton's words."""
        message = refusal(output={"shared_memory_region": "r", "shared_memory_byte_size": 4, member: value})
        assert message == f"Output can't set both 'shared_memory_region' and '{member}'"


class TestResponse:
    def test_beside_others(self):
        """Of outputs in the client's memory nothing is said but their shape: Triton's C++ client counts on that."""
        outputs = [
            OutputTensor("Y", "INT8", [2], b"", place=place("r", 8, 2)),
            OutputTensor("P", "INT8", [2], b"ab"),
        ]
        response = InferResponse("m", 1, "7", outputs)
        document, length, parts = encode_infer(response, OutputOptions(False, {"Y": False, "P": True}))
        assert (length, parts) == (len(document), [b"ab"])
        assert json.loads(document)["outputs"] == [
            {"name": "Y", "datatype": "INT8", "shape": [2]},
            {"name": "P", "datatype": "INT8", "shape": [2], "parameters": {"binary_data_size": 2}},
        ]

    def test_nothing_else(self):
        """Without other binary outputs the response is all JSON."""
        response = InferResponse("m", 1, "", [OutputTensor("Y", "FP16", [2], b"", place=place("r", 0, 4))])
        document, length, parts = encode_infer(response, ALL_JSON)
        assert (length, parts) == (0, [])
        assert json.loads(document)["outputs"] == [{"name": "Y", "datatype": "FP16", "shape": [2]}]

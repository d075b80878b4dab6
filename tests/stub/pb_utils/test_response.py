# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pb_utils.InferenceResponse`, as models know it."""

import json
import re

import numpy as np
import pytest

from pyruntime.stub.pb_utils import (
    InferenceResponse,
    Tensor,
    TritonError,
    TritonModelException,
    get_output_tensor_by_name,
)

TENSOR = Tensor("OUT", np.zeros(2, np.float32))


class TestOutputs:
    @pytest.mark.parametrize("make", [InferenceResponse, lambda tensors: InferenceResponse(output_tensors=tensors)])
    def test_by_place_and_by_name(self, make):
        """Outputs are given by place or by name."""
        response = make([TENSOR])
        assert response.output_tensors() == [TENSOR]
        assert not response.has_error()
        assert response.error() is None
        assert response.parameters() == "{}"
        assert get_output_tensor_by_name(response, "OUT") is TENSOR

    def test_none_at_all(self):
        """A response may be without outputs."""
        assert InferenceResponse().output_tensors() == []

    def test_any_sequence(self):
        """A tuple will do, and a later change of the model's own list changes nothing."""
        tensors = [TENSOR]
        response = InferenceResponse(tensors)
        tensors.clear()
        assert response.output_tensors() == InferenceResponse((TENSOR,)).output_tensors() == [TENSOR]

    def test_a_tensor_that_is_none(self):
        """None among the outputs is refused, in Triton's words."""
        with pytest.raises(TritonModelException, match=r"^Output tensor for inference response should not be empty.$"):
            InferenceResponse([TENSOR, None])

    @pytest.mark.parametrize("wrong", [np.zeros(1), "OUT", 1], ids=repr)
    def test_something_else(self, wrong):
        """Outputs are tensors."""
        with pytest.raises(TypeError, match=re.escape(str(type(wrong)))):
            InferenceResponse([wrong])


class TestError:
    def test_drops_everything_else(self):
        """With an error there are neither outputs nor parameters."""
        error = TritonError("no", TritonError.NOT_FOUND)
        response = InferenceResponse([TENSOR], error, {"a": 1})
        assert response.has_error()
        assert response.error() is error
        assert response.output_tensors() == []
        assert response.parameters() == "{}"

    def test_by_name(self):
        """The way nearly all models write it."""
        response = InferenceResponse(output_tensors=[], error=TritonError("no"))
        assert response.error().message() == "no"

    @pytest.mark.parametrize("wrong", ["no", ValueError("no"), 1], ids=repr)
    def test_that_is_no_triton_error(self, wrong):
        """An error that is not a TritonError raises in the constructor, where the model's author sees it."""
        with pytest.raises((TypeError, TritonModelException)):
            InferenceResponse([], wrong)


class TestParameters:
    @pytest.mark.parametrize("parameters", [{"a": 1, "b": True, "c": "ü"}, {"a": -(2**62)}, {"": ""}], ids=repr)
    def test_are_json(self, parameters):
        """Parameters are read as a JSON object."""
        assert json.loads(InferenceResponse(parameters=parameters).parameters()) == parameters

    @pytest.mark.parametrize("parameters", [None, {}])
    def test_none(self, parameters):
        """Without parameters the object is empty."""
        assert InferenceResponse(parameters=parameters).parameters() == "{}"

    @pytest.mark.parametrize("value", [1.5, None, [], {}, b"a"], ids=repr)
    def test_value_of_another_type(self, value):
        """Values are bool, int or str."""
        message = f"Expect parameters values to have type bool/int/str, found type {type(value)}"
        with pytest.raises(TritonModelException, match=f"^{re.escape(message)}$"):
            InferenceResponse(parameters={"a": value})

    def test_key_of_another_type(self):
        """Keys are str."""
        with pytest.raises(
            TritonModelException, match=r"^Expect parameters keys to have type str, found type <class 'int'>$"
        ):
            InferenceResponse(parameters={1: "a"})

    @pytest.mark.parametrize("wrong", [[1], "a", 5, 0, [], ""], ids=repr)
    def test_that_are_no_dict(self, wrong):
        """Parameters are a dict."""
        message = f"Expect {dict}, got {type(wrong)}"
        with pytest.raises(TritonModelException, match=f"^{re.escape(message)}$"):
            InferenceResponse(parameters=wrong)


class TestRepr:
    def test_of_outputs(self):
        """A response shows its outputs."""
        assert repr(InferenceResponse([TENSOR])) == "<InferenceResponse [<Tensor OUT FP32 [2]>]>"

    def test_of_an_error(self):
        """The repr of a response with an error has the error."""
        assert "no" in repr(InferenceResponse(error=TritonError("no")))

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What `execute` returned is checked in Triton's words, and written into the response region."""

import re

import numpy as np
import pytest

from pyruntime.runtime.memory.regions import create_region
from pyruntime.stub.pb_utils import InferenceRequest, InferenceResponse, Tensor, TritonError
from pyruntime.stub.responses import SMALL_BYTES, ResponseWriter, WrongResponses, check_responses
from pyruntime.utils.arena import ALIGNMENT
from pyruntime.utils.errors import Code, OutOfMemoryError
from pyruntime.utils.messages import NO_SLOT, OK

OUTPUTS = {"A", "B"}


@pytest.fixture
def region():
    made = create_region("a test")
    yield made
    made.close()


@pytest.fixture
def writer(region):
    return ResponseWriter(region, 1 << 20, "m", OUTPUTS)


def request(region, outputs=None):
    return InferenceRequest._from_wire(region.map, ["", 0, 0, 0, outputs, "", []], OUTPUTS)


class TestCheck:
    def test_one_for_each(self, region):
        """As many responses as requests are right."""
        check_responses([InferenceResponse(), InferenceResponse()], [request(region)] * 2)
        check_responses([], [])

    @pytest.mark.parametrize("wrong", [None, (), {}, InferenceResponse(), 5], ids=lambda wrong: type(wrong).__name__)
    def test_no_list(self, region, wrong):
        """Anything but a list is named by its type."""
        message = f"Expected a list in the execute return, found type '{type(wrong)}'."
        with pytest.raises(WrongResponses, match=f"^{re.escape(message)}$"):
            check_responses(wrong, [request(region)])

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_another_number(self, region, count):
        """Both numbers are told."""
        message = (
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            f"InferenceRequest(s) size is:2, and InferenceResponse(s) size is:{count}\n"
        )
        with pytest.raises(WrongResponses, match=f"^{re.escape(message)}$"):
            check_responses([InferenceResponse()] * count, [request(region)] * 2)

    @pytest.mark.parametrize("wrong", [None, "no", [], TritonError("no")], ids=lambda wrong: type(wrong).__name__)
    def test_an_element_of_another_type(self, region, wrong):
        """An element that is no response is named by its type."""
        message = (
            f"Expected an 'InferenceResponse' object in the execute function return list, found type '{type(wrong)}'."
        )
        with pytest.raises(WrongResponses, match=f"^{re.escape(message)}$"):
            check_responses([InferenceResponse(), wrong], [request(region)] * 2)


class TestWrite:
    def test_outputs(self, region, writer):
        """Outputs lie in one slot, each aligned for any datatype, in the order the model gave them."""
        b, a = np.arange(5, dtype=np.int8), np.arange(6, dtype=np.float64).reshape(2, 3)
        code, message, slot, tensors, parameters = writer.write(
            InferenceResponse([Tensor("B", b), Tensor("A", a)]), request(region)
        )
        assert (code, message, parameters) == (OK, "", "")
        assert [tuple(tensor[:3]) for tensor in tensors] == [("B", "INT8", [5]), ("A", "FP64", [2, 3])]
        assert [tensor[4] for tensor in tensors] == [5, 48]
        assert [tensor[3] % ALIGNMENT for tensor in tensors] == [0, 0]
        for (_, _, _, offset, size), array in zip(tensors, (b, a), strict=True):
            assert region.map[offset : offset + size] == array.tobytes()
        assert slot == tensors[0][3]
        assert writer.arena.live == 1
        writer.arena.free(slot)

    @pytest.mark.parametrize("count", [SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 1, 1 << 20])
    def test_any_size(self, region, writer, count):
        """Small outputs and large ones arrive alike."""
        array = np.random.default_rng(1).integers(0, 256, count, np.uint8)
        _, _, _, ((_, _, _, offset, size),), _ = writer.write(InferenceResponse([Tensor("A", array)]), request(region))
        assert region.map[offset : offset + size] == array.tobytes()

    def test_bytes(self, region, writer):
        """BYTES are written in their encoding."""
        array = np.array([[b"a", "bc"]], object)
        _, _, _, ((_, datatype, shape, offset, size),), _ = writer.write(
            InferenceResponse([Tensor("A", array)]), request(region)
        )
        assert (datatype, shape) == ("BYTES", [1, 2])
        assert region.map[offset : offset + size] == b"\1\0\0\0a\2\0\0\0bc"

    @pytest.mark.parametrize("array", [np.zeros((0, 3), np.float32), np.zeros((2, 0), object)], ids=["FP32", "BYTES"])
    def test_no_elements(self, region, writer, array):
        """Outputs without contents take no slot."""
        _, _, slot, ((_, _, shape, offset, size),), _ = writer.write(
            InferenceResponse([Tensor("A", array)]), request(region)
        )
        assert slot == NO_SLOT
        assert (list(shape), offset, size) == (list(array.shape), 0, 0)
        assert writer.arena.live == 0

    def test_one_with_contents_and_one_without(self, region, writer):
        """A tensor without contents may stand beside one that has some."""
        code, _, slot, tensors, _ = writer.write(
            InferenceResponse([Tensor("A", np.zeros(0)), Tensor("B", np.ones(1))]), request(region)
        )
        assert code == OK
        assert [tensor[4] for tensor in tensors] == [0, 8]
        assert all(0 <= tensor[3] <= region.limit for tensor in tensors)
        writer.arena.free(slot)

    def test_nothing(self, region, writer):
        """A response may have no outputs at all."""
        assert writer.write(InferenceResponse(), request(region)) == [OK, "", NO_SLOT, [], ""]

    def test_parameters(self, region, writer):
        """Parameters go along as JSON."""
        assert writer.write(InferenceResponse(parameters={"a": 1}), request(region))[4] == '{"a": 1}'

    def test_output_nobody_asked_for(self, region, writer):
        """An output that the client does not want is left out."""
        response = InferenceResponse([Tensor("A", np.zeros(1)), Tensor("B", np.zeros(1))])
        tensors = writer.write(response, request(region, ["B"]))[3]
        assert [tensor[0] for tensor in tensors] == ["B"]
        assert writer.write(response, request(region, []))[2:4] == [NO_SLOT, []]

    def test_output_the_model_does_not_have(self, region, writer):
        """An output that is not configured fails the request, in Triton's words."""
        response = InferenceResponse([Tensor("A", np.zeros(1)), Tensor("C", np.zeros(1))])
        assert writer.write(response, request(region)) == [
            Code.INVALID_ARG, "unexpected inference output 'C' for model 'm'", NO_SLOT, [], "",
        ]  # fmt: skip
        assert writer.arena.live == 0

    @pytest.mark.parametrize("code", Code)
    def test_error(self, region, writer, code):
        """A response's own error goes out with its code."""
        response = InferenceResponse([Tensor("A", np.zeros(1))], TritonError("no", code))
        assert writer.write(response, request(region)) == [code.value, "no", NO_SLOT, [], ""]
        assert writer.arena.live == 0

    def test_slots_are_reused(self, region, writer):
        """A slot that was freed serves the next response."""
        response = InferenceResponse([Tensor("A", np.zeros(1))])
        slot = writer.write(response, request(region))[2]
        writer.arena.free(slot)
        assert writer.write(response, request(region))[2] == slot

    def test_no_memory(self, region, writer, monkeypatch):
        """Without memory for it the one request fails as UNAVAILABLE, and the next may go through."""

        def commit(offset, size):
            raise OutOfMemoryError("no shared memory left")

        response = InferenceResponse([Tensor("A", np.zeros(100))])
        with monkeypatch.context() as patch:
            patch.setattr(region, "commit", commit)
            code, message, slot, tensors, _ = writer.write(response, request(region))
        assert (code, slot, tensors) == (Code.UNAVAILABLE, NO_SLOT, [])
        assert message == "no room for a response of 832 bytes: no shared memory left"
        assert writer.write(response, request(region))[0] == OK

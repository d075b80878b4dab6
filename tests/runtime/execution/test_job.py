# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from pyruntime.runtime.execution.job import Job, place_refs, request_options, tensor_refs
from pyruntime.runtime.requests.types import ClientContents, InferRequest, InputTensor, OutputPlace
from pyruntime.utils.addresses import address
from pyruntime.utils.request_codec import RequestOptions


class TestOptions:
    def test_of_little(self):
        """A request that says nothing has defaults."""
        assert request_options(InferRequest("m")) == RequestOptions(0, 0, 0, None, "")

    def test_of_everything(self):
        """Every field has its place."""
        request = InferRequest(
            "m", id="7", sequence_id="s", timeout_us=9, requested_outputs=["OUT"], parameters={"a": 1, "b": "ü"}
        )
        options = request_options(request)
        assert options[:4] == ("s", 0, 9, ["OUT"])
        assert json.loads(options.parameters) == {"a": 1, "b": "ü"}

    @pytest.mark.parametrize(("start", "end", "flags"), [(0, 0, 0), (1, 0, 1), (0, 1, 2), (1, 1, 3)])
    def test_flags(self, start, end, flags):
        """The beginning and the end of a sequence are bits."""
        request = InferRequest("m", sequence_start=bool(start), sequence_end=bool(end))
        assert request_options(request).flags == flags


class TestReferences:
    def test_inputs(self):
        """They refer to the request region, or to a client's memory."""
        contents = ClientContents(None, address(5, 64), 8)
        inputs = [
            InputTensor("A", "FP32", [1, 2], memoryview(bytes(8)), 64),
            InputTensor("B", "FP32", [2], b"", address(5, 64), contents),
        ]
        assert tensor_refs(inputs) == [
            ("A", "FP32", [1, 2], 64, 8, 0, 0),
            ("B", "FP32", [2], address(5, 64), 8, 0, 0),
        ]

    def test_places(self):
        """The place of an output is an address with a size."""
        place = OutputPlace("r", 7, 16, ClientContents(None, address(5, 64), 16))
        assert place_refs({"OUT": place}) == {"OUT": (address(5, 64), 16, 0, 0)}


class TestSequence:
    def test_options_are_shared(self):
        """A change of one job's options is not visible to the other jobs that share them."""
        options = RequestOptions(0, 2)
        first, second = (Job("", options, [], 1, None, [], print, 0) for _ in range(2))
        first.begin_sequence(7)
        assert (first.sequence_id, first.is_start, first.is_end) == (7, True, True)
        assert (second.sequence_id, second.is_start, second.is_end) == (0, False, True)
        first.continue_sequence()
        assert (first.sequence_id, first.is_start, first.is_end) == (7, False, True)

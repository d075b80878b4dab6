# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pb_utils.InferenceRequest`, as models know it."""

import pytest

from pyruntime.stub.pb_utils import InferenceRequest, get_input_tensor_by_name

OUTPUTS = {"OUT1", "OUT0"}


@pytest.fixture
def region(regions):
    regions.requests.map[0:8] = bytes(range(8))
    return regions


def request(region, id="", correlation=0, flags=0, timeout_us=0, outputs=None, parameters="", tensors=()):
    wire = [id, correlation, flags, timeout_us, outputs, parameters, list(tensors)]
    return InferenceRequest._from_wire(region, wire, OUTPUTS, 7)


class TestDefaults:
    def test_of_a_request_that_says_nothing(self, region):
        """What the client left out is Triton's default."""
        made = request(region)
        assert made.request_id() == ""
        assert made.correlation_id() == 0
        assert made.flags() == 0
        assert made.timeout() == 0
        assert made.parameters() == "{}"
        assert made.inputs() == []

    def test_all_outputs(self, region):
        """Who names no output wants all of the model's."""
        assert request(region).requested_output_names() == OUTPUTS


class TestValues:
    def test_of_a_request_that_says_all(self, region):
        """What the client said is what the model reads."""
        made = request(region, "id", "sequence", 3, 1000, ["OUT0"], '{"a":1}')
        assert made.request_id() == "id"
        assert made.correlation_id() == "sequence"
        assert made.flags() == 3
        assert made.timeout() == 1000
        assert made.requested_output_names() == {"OUT0"}
        assert made.parameters() == '{"a":1}'

    def test_number_of_a_sequence(self, region):
        """A sequence's id may be a number."""
        assert request(region, correlation=2**64 - 1).correlation_id() == 2**64 - 1

    def test_set_flags(self, region):
        """Flags may be replaced."""
        made = request(region, flags=1)
        made.set_flags(2)
        assert made.flags() == 2

    def test_no_outputs(self, region):
        """A client may want no output at all."""
        assert request(region, outputs=[]).requested_output_names() == set()

    def test_output_names_are_a_copy(self, region):
        """Whoever changes the names changes nothing else: neither the request's, nor another request's."""
        made = request(region)
        made.requested_output_names().clear()
        assert made.requested_output_names() == OUTPUTS
        assert request(region).requested_output_names() == OUTPUTS


class TestInputs:
    def test_in_the_order_they_came(self, region):
        """Inputs are what was sent, in that order."""
        made = request(region, tensors=[["B", "UINT8", [2], 2, 2], ["A", "UINT8", [1, 2], 0, 2]])
        assert [tensor.name() for tensor in made.inputs()] == ["B", "A"]
        assert [tensor.as_numpy().tolist() for tensor in made.inputs()] == [[2, 3], [[0, 1]]]

    def test_are_the_same_each_time(self, region):
        """Asking twice gives the same tensors."""
        made = request(region, tensors=[["A", "UINT8", [2], 2, 2]])
        assert made.inputs()[0] is made.inputs()[0]

    def test_by_name(self, region):
        """The function that models use finds them; one that did not come is None."""
        made = request(region, tensors=[["A", "UINT8", [2], 2, 2]])
        assert get_input_tensor_by_name(made, "A").as_numpy().tolist() == [2, 3]
        assert get_input_tensor_by_name(made, "B") is None


def test_repr(region):
    """A request shows its id and its inputs, without contents."""
    made = request(region, "7", tensors=[["A", "UINT8", [2], 2, 2]])
    assert repr(made) == "<InferenceRequest '7' [<Tensor A UINT8 [2]>]>"


def test_has_no_more_attributes(region):
    """A misspelt attribute is an error, not a new one."""
    with pytest.raises(AttributeError):
        request(region).request = 1

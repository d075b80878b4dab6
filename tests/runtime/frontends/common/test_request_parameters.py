# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from pyruntime.runtime.frontends.common.request_parameters import (
    INT64_MAX,
    PARAMETERS_MAX,
    UINT64_MAX,
    read_id,
    read_parameters,
)
from pyruntime.runtime.requests.types import InferRequest
from pyruntime.utils.errors import Code, InferenceError


def refusal(parameters):
    with pytest.raises(InferenceError) as caught:
        read_parameters(InferRequest("m"), parameters)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


def test_ids():
    """An id is a string, and nothing else."""
    assert read_id("7") == "7"
    for value in (7, None, ["7"]):
        with pytest.raises(InferenceError, match="'id' must be a string") as caught:
            read_id(value)
        assert caught.value.code is Code.INVALID_ARG


def test_nothing_said():
    """Without parameters a request has its defaults and outputs are not binary."""
    request = InferRequest("m")
    assert read_parameters(request, {}) is False
    assert request == InferRequest("m")


def test_tritons_own_become_fields():
    """Reserved parameters are fields of the request and do not reach the model."""
    request = InferRequest("m")
    parameters = {
        "sequence_id": 7,
        "sequence_start": True,
        "sequence_end": True,
        "priority": 2,
        "timeout": 1500,
        "binary_data_output": True,
    }
    assert read_parameters(request, parameters) is True
    assert request == InferRequest(
        "m", sequence_id=7, sequence_start=True, sequence_end=True, priority=2, timeout_us=1500
    )


@pytest.mark.parametrize("sequence_id", [0, UINT64_MAX, "", "session-1", "ü" * 64])
def test_sequence_ids_are_unsigned_or_strings(sequence_id):
    """A sequence goes by a number or by a name."""
    request = InferRequest("m")
    read_parameters(request, {"sequence_id": sequence_id})
    assert request.sequence_id == sequence_id


def test_names_of_sequences_are_short():
    """In Triton's own words."""
    with pytest.raises(InferenceError) as caught:
        read_parameters(InferRequest("m"), {"sequence_id": "ü" * 65})
    assert caught.value.message == "string correlation ID cannot be longer than 128 characters"
    assert caught.value.code is Code.UNSUPPORTED


def test_others_go_to_the_model():
    """Strings, integers, booleans and doubles are kept, with their types."""
    request = InferRequest("m")
    parameters = {"s": "x", "i": -INT64_MAX - 1, "j": INT64_MAX, "b": False, "d": 0.5, "": 1, "Triton_x": 1}
    read_parameters(request, parameters)
    assert request.parameters == parameters
    assert [type(value) for value in request.parameters.values()] == [str, int, int, bool, float, int, int]


def test_large_integers_are_doubles():
    """An integer that does not fit in 64 bits becomes a double, as in Triton."""
    request = InferRequest("m")
    read_parameters(request, {"x": INT64_MAX + 1, "y": -INT64_MAX - 2})
    assert request.parameters == {"x": 2.0**63, "y": -(2.0**63)}
    assert [type(value) for value in request.parameters.values()] == [float, float]


@pytest.mark.parametrize("key", ["triton_", "triton_enable_empty_final_response", "triton_x"])
def test_triton_prefix_is_reserved(key):
    """In Triton's own words."""
    assert refusal({key: True}) == (
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ([], "'parameters' must be an object, got a list"),
        (None, "'parameters' must be an object, got null"),
        ({"binary_data_output": 1}, "parameter 'binary_data_output' must be true or false, got 1"),
        ({"sequence_start": "true"}, "parameter 'sequence_start' must be true or false, got \"true\""),
        ({"sequence_end": None}, "parameter 'sequence_end' must be true or false, got null"),
        ({"priority": -1}, f"parameter 'priority' must be an integer from 0 to {UINT64_MAX}, got -1"),
        ({"priority": True}, f"parameter 'priority' must be an integer from 0 to {UINT64_MAX}, got true"),
        ({"timeout": 1.5}, f"parameter 'timeout' must be an integer from 0 to {UINT64_MAX}, got 1.5"),
        ({"timeout": "1"}, f"parameter 'timeout' must be an integer from 0 to {UINT64_MAX}, got \"1\""),
        (
            {"timeout": UINT64_MAX + 1},
            f"parameter 'timeout' must be an integer from 0 to {UINT64_MAX}, got {UINT64_MAX + 1}",
        ),
        (
            {"sequence_id": -1},
            f"parameter 'sequence_id' must be a string or an integer from 0 to {UINT64_MAX}, got -1",
        ),
        ({"x": {}}, "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'."),
        ({"x": [1]}, "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'."),
        ({"x": None}, "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'."),
        (
            dict.fromkeys(map(str, range(PARAMETERS_MAX + 1)), 1),
            f"the request has {PARAMETERS_MAX + 1} parameters, expected at most {PARAMETERS_MAX}",
        ),
    ],
)
def test_what_does_not_suit_is_refused(parameters, message):
    """The message names the parameter, the expected type and the value."""
    assert refusal(parameters) == message

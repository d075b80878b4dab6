# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The sequence of a request, as it goes through the steps of an ensemble."""

import pytest

from pyruntime.runtime.ensembles.marks import changed_mark, mark_parameters
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import SEQUENCE_END, SEQUENCE_START

BOTH = SEQUENCE_START | SEQUENCE_END


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, (7, SEQUENCE_START)),
        ({"other": 3, "sequence": True}, (7, SEQUENCE_START)),
        ({"sequence_id": 9}, (9, 0)),
        ({"sequence_id": "nine"}, ("nine", 0)),
        ({"sequence_id": 0}, (0, 0)),
        ({"sequence_id": -1}, (2**64 - 1, 0)),
        ({"sequence_id": -(2**63), "sequence_start": True}, (2**63, SEQUENCE_START)),
        ({"sequence_end": True}, (7, SEQUENCE_END)),
        ({"sequence_start": True, "sequence_end": True}, (7, BOTH)),
        ({"sequence_start": False, "sequence_end": False}, (7, 0)),
        ({"sequence_id": "", "sequence_start": False, "sequence_end": True}, ("", SEQUENCE_END)),
    ],
)
def test_changed(parameters, expected):
    """Without an id it stays, and with any of the three parameters the flags are those of the response."""
    assert changed_mark((7, SEQUENCE_START), parameters) == expected


@pytest.mark.parametrize(
    ("name", "value", "kinds"),
    [
        ("sequence_id", True, "TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING"),
        ("sequence_id", 1.5, "TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING"),
        ("sequence_start", 1, "TRITONSERVER_PARAMETER_BOOL"),
        ("sequence_end", "true", "TRITONSERVER_PARAMETER_BOOL"),
    ],
)
def test_wrong_type(name, value, kinds):
    """A parameter of another type is an error that says what it has to be."""
    with pytest.raises(InferenceError, match=f"expect(ed)? parameter '{name}' to be {kinds}$") as caught:
        changed_mark((7, 0), {name: value})
    assert caught.value.code is Code.INVALID_ARG


@pytest.mark.parametrize("flags", [0, SEQUENCE_START, SEQUENCE_END, BOTH])
def test_parameters(flags):
    """The parameters of a response say what the mark is."""
    parameters = mark_parameters(("id", flags))
    assert parameters.keys() == {"sequence_id", "sequence_start", "sequence_end"}
    assert changed_mark((0, 0), parameters) == ("id", flags)


@pytest.mark.parametrize("number", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_numbers(number):
    """As in Triton the number in a response is signed, which is what gRPC can express; it leads back to the same id."""
    parameters = mark_parameters((number, 0))
    assert -(2**63) <= parameters["sequence_id"] < 2**63
    assert changed_mark((0, 0), parameters) == (number, 0)

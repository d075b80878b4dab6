# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The states of a sequence."""

import pytest

from pyruntime.runtime.config.spec import StateSpec
from pyruntime.runtime.execution.states import SequenceStates
from pyruntime.utils.errors import Code, InferenceError

SPECS = (
    StateSpec("A_IN", "A_OUT", "INT32", (-1,), (1, 1), bytes(4)),
    StateSpec("B_IN", "B_OUT", "BYTES", (1,), (1, 1), b"\x01\0\0\0x"),
)


@pytest.fixture
def states():
    return SequenceStates(SPECS, "m")


def test_begins_as_configured(states):
    """Before there was an update the inputs are the initial states."""
    assert states.inputs == [("A_IN", "INT32", [1, 1], bytes(4)), ("B_IN", "BYTES", [1, 1], b"\x01\0\0\0x")]
    assert repr(states) == "<SequenceStates m [A_IN, B_IN]>"


def test_update(states):
    """An output of the model is the input of the next request, whose name is another one."""
    states.update("A_OUT", "INT32", [1, 2], memoryview(bytes(range(8))))
    states.update("B_OUT", "BYTES", [1, 1], b"\x02\0\0\0yz")
    assert states.inputs == [("A_IN", "INT32", [1, 2], bytes(range(8))), ("B_IN", "BYTES", [1, 1], b"\x02\0\0\0yz")]


def test_update_copies(states):
    """The memory that an update came in may be used again."""
    memory = bytearray(b"abcd")
    states.update("A_OUT", "INT32", [1, 1], memoryview(memory))
    memory[:] = b"wxyz"
    assert states.inputs[0].data == b"abcd"


def test_sequences_have_their_own():
    """Sequences do not share states."""
    first, second = SequenceStates(SPECS, "m"), SequenceStates(SPECS, "m")
    first.update("A_OUT", "INT32", [1, 1], b"abcd")
    assert second.inputs[0].data == bytes(4)


@pytest.mark.parametrize(
    ("update", "why"),
    [
        (("A_IN", "INT32", [1, 1], bytes(4)), "'A_IN'. State configuration is missing for model 'm'."),
        (("A_OUT", "FP32", [1, 1], bytes(4)), "'A_OUT'. Its datatype is INT32, got FP32"),
        (("A_OUT", "INT32", [1], bytes(4)), "'A_OUT'. Its shape is [1, -1], got [1]"),
        (("A_OUT", "INT32", [2, 1], bytes(8)), "'A_OUT'. Its shape is [1, -1], got [2, 1]"),
        (("A_OUT", "INT32", [1, 2], bytes(7)), "'A_OUT'. It has 8 bytes, got 7"),
    ],
)
def test_refused(states, update, why):
    """An update of an unknown state, or with wrong contents, is refused and changes nothing."""
    with pytest.raises(InferenceError) as caught:
        states.update(*update)
    assert (caught.value.message, caught.value.code) == (f"unable to add state {why}", Code.INVALID_ARG)
    assert states.inputs[0].data == bytes(4)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from pyruntime.stub.pb_utils.errors import TritonError, TritonModelException
from pyruntime.utils.errors import Code


def test_codes_are_those_of_the_protocol():
    """Eight codes carry Triton's numbers, and one of our own follows."""
    names = [code.name for code in Code]
    assert [int(getattr(TritonError, name)) for name in names] == list(range(9))
    assert [getattr(TritonError, name) for name in names] == list(Code)


def test_default_code_is_internal():
    """An error without a code is an internal one."""
    error = TritonError("broken")
    assert (error.message(), error.code()) == ("broken", TritonError.INTERNAL)


def test_code_by_position_and_by_name():
    """The code may be given either way."""
    assert TritonError("x", TritonError.NOT_FOUND).code() is TritonError.NOT_FOUND
    assert TritonError(message="x", code=TritonError.CANCELLED).code() is TritonError.CANCELLED


def test_is_a_value_and_not_an_exception():
    """A TritonError is returned, never raised."""
    assert not issubclass(TritonError, BaseException)
    with pytest.raises(TypeError):
        raise TritonError("x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None,), "TritonError message must be a str, found type <class 'NoneType'>"),
        (("x", None), "TritonError code must be one of TritonError's own, found type <class 'NoneType'>"),
        (("x", 1), "TritonError code must be one of TritonError's own, found type <class 'int'>"),
    ],
)
def test_refuses_other_types(arguments, message):
    """Neither the message nor the code may be None or of another type."""
    with pytest.raises(TypeError) as caught:
        TritonError(*arguments)
    assert str(caught.value) == message


def test_codes_are_read_only():
    """A code can be changed neither on the class nor on an error."""
    with pytest.raises(AttributeError, match=r"^TritonError\.INTERNAL is read-only$"):
        TritonError.INTERNAL = TritonError.UNKNOWN
    with pytest.raises(AttributeError):
        TritonError("x").INTERNAL = TritonError.UNKNOWN
    assert TritonError.INTERNAL == 1


def test_repr():
    """The repr of an error has its message and its code."""
    assert repr(TritonError("no", TritonError.UNAVAILABLE)) == "TritonError('no', TritonError.UNAVAILABLE)"


def test_model_exception_is_an_exception():
    """Models may raise TritonModelException with a message of their own."""
    with pytest.raises(TritonModelException, match=r"^mine$"):
        raise TritonModelException("mine")

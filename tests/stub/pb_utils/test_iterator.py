# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`ResponseIterator`, as models know it."""

import gc
import weakref

import pytest

from pyruntime.stub.host import Answers
from pyruntime.stub.pb_utils import InferenceResponse
from pyruntime.stub.pb_utils.iterator import ResponseIterator


class Call(Answers):
    """A call with these responses."""

    def __init__(self, *responses):
        self.responses = list(responses)
        self.asked = 0
        self.cancels = 0

    def next(self):
        self.asked += 1
        return self.responses.pop(0) if self.responses else None

    def cancel(self):
        self.cancels += 1


A, B, C = InferenceResponse(), InferenceResponse(), InferenceResponse()


def test_in_order():
    """Responses come in their order, and then there are no more."""
    iterator = ResponseIterator(Call(A, B))
    assert next(iterator) is A
    assert next(iterator) is B
    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_none():
    """There may be none."""
    assert list(ResponseIterator(Call())) == []


def test_asks_for_one_at_a_time():
    """A response is only requested when it is needed."""
    call = Call(A, B)
    iterator = ResponseIterator(call)
    assert call.asked == 0
    next(iterator)
    assert call.asked == 1


def test_over_again():
    """When they have all come they can be gone through again, without asking."""
    call = Call(A, B, C)
    iterator = ResponseIterator(call)
    assert list(iterator) == [A, B, C]
    asked = call.asked
    assert list(iterator) == [A, B, C]
    assert tuple(iterator) == (A, B, C)
    assert call.asked == asked


def test_not_over_again_before_the_end():
    """Until then a loop goes on where the one before it was left."""
    iterator = ResponseIterator(Call(A, B, C))
    for response in iterator:
        assert response is A
        break
    assert list(iterator) == [B, C]
    assert list(iterator) == [A, B, C]


def test_of_one_response():
    """It may be made of a response that is there already."""
    iterator = ResponseIterator(A)
    assert list(iterator) == [A]
    assert list(iterator) == [A]
    iterator.cancel()


def test_cancel():
    """A cancelled call stops waiting for further responses; cancelling it after the end has no effect."""
    call = Call(A, B)
    iterator = ResponseIterator(call)
    next(iterator)
    iterator.cancel()
    assert call.cancels == 1
    assert list(iterator) == [B]  # what still comes can be read
    iterator.cancel()
    assert call.cancels == 1


def test_dropped():
    """Dropping the iterator drops the call, whose owner then cancels it."""
    call = Call(A, B)
    gone = weakref.ref(call)
    iterator = ResponseIterator(call)
    del call
    next(iterator)
    assert gone() is not None
    del iterator
    gc.collect()
    assert gone() is None


def test_not_asynchronous():
    """As in Triton it is for a plain loop."""
    assert not hasattr(ResponseIterator(A), "__aiter__")

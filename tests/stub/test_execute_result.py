# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the responses that `execute` returned, with Triton's messages."""

import re

import pytest

from pyruntime.stub.execute_result import WrongResponses, check_responses
from pyruntime.stub.pb_utils import (
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
    InferenceResponse,
    TritonError,
)
from pyruntime.utils.request_codec import WireRequest


def request(release_flags=TRITONSERVER_REQUEST_RELEASE_ALL):
    made = InferenceRequest._from_wire(None, WireRequest("", 0, 0, 0, None, "", []), {"A"}, 7)
    made.set_release_flags(release_flags)
    return made


def test_one_for_each():
    """As many responses as requests are right."""
    check_responses([InferenceResponse(), InferenceResponse()], [request()] * 2)
    check_responses([], [])


@pytest.mark.parametrize("wrong", [(), {}, InferenceResponse(), 5], ids=lambda wrong: type(wrong).__name__)
def test_no_list(wrong):
    """Anything but a list is named by its type."""
    message = f"Expected a list in the execute return, found type '{type(wrong)}'."
    with pytest.raises(WrongResponses, match=f"^{re.escape(message)}$"):
        check_responses(wrong, [request()])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number(count):
    """The message has both numbers."""
    message = (
        "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
        f"InferenceRequest(s) size is:2, and InferenceResponse(s) size is:{count}\n"
    )
    with pytest.raises(WrongResponses, match=f"^{re.escape(message)}$"):
        check_responses([InferenceResponse()] * count, [request()] * 2)


@pytest.mark.parametrize("wrong", ["no", [], TritonError("no")], ids=lambda wrong: type(wrong).__name__)
def test_an_element_of_another_type(wrong):
    """An element that is no response is named by its type."""
    message = f"Expected an 'InferenceResponse' object in the execute function return list, found type '{type(wrong)}'."
    with pytest.raises(WrongResponses, match=f"^{re.escape(message)}$"):
        check_responses([InferenceResponse(), wrong], [request()] * 2)


def test_none_for_one_that_its_sender_answers():
    """None may stand in place of any response, and of all."""
    check_responses([None, InferenceResponse()], [request()] * 2)
    check_responses(None, [request()] * 2)


def test_none_for_one_that_is_executed_again():
    """A request that is to be executed again has no response yet."""
    check_responses([None], [request(TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)])


@pytest.mark.parametrize("wrong", [InferenceResponse(), "no"], ids=lambda wrong: type(wrong).__name__)
def test_something_for_one_that_is_executed_again(wrong):
    """In Triton's words, misspelt as there."""
    message = (
        "Expected a None object in the execute function return list for reschduled request, "
        f"found type '{type(wrong)}'."
    )
    with pytest.raises(WrongResponses, match=f"^{re.escape(message)}$"):
        check_responses([wrong], [request(TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)])

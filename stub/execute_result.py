# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What `execute` may return, with Triton's messages for what it may not."""

from __future__ import annotations

from typing import Any, List

from pyruntime.stub.pb_utils.functions import TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
from pyruntime.stub.pb_utils.request import InferenceRequest
from pyruntime.stub.pb_utils.response import InferenceResponse
from pyruntime.utils.errors import PyruntimeError


class WrongResponses(PyruntimeError):
    """`execute` returned an invalid result. The message is Triton's, for the clients of the batch."""


def check_responses(responses: Any, requests: List[InferenceRequest]) -> None:
    """Raise WrongResponses unless `responses` is one InferenceResponse, or None, for each request, or None for all."""
    if responses is None:
        return  # senders answer all of them
    if not isinstance(responses, list):
        raise WrongResponses(f"Expected a list in the execute return, found type '{type(responses)}'.")
    if len(responses) != len(requests):
        raise WrongResponses(
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(responses)}\n"
        )
    for response, request in zip(responses, requests):
        if response is None:
            continue  # its sender answers it, or it is rescheduled
        if request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
            raise WrongResponses(
                "Expected a None object in the execute function return list for reschduled request, "
                f"found type '{type(response)}'."
            )
        if not isinstance(response, InferenceResponse):
            raise WrongResponses(
                "Expected an 'InferenceResponse' object in the execute function return list, "
                f"found type '{type(response)}'."
            )

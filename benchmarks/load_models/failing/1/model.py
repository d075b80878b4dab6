# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Fails in every method; in execute in the way that the request asks for."""

import numpy as np
import triton_python_backend_utils as pb_utils


def answer(request, name="ID"):
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor(name, np.array([request.request_id().encode()], dtype=np.object_))]
    )


class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        how = pb_utils.get_input_tensor_by_name(request, "HOW").as_numpy()[0].decode()
        return getattr(self, "do_" + how)(request)

    def is_ready(self):
        raise RuntimeError("is_ready failed on purpose")

    def finalize(self):
        raise RuntimeError("finalize failed on purpose")

    def do_nothing_wrong(self, request):
        return [answer(request)]

    def do_raise(self, request):
        raise ValueError(f"raised on purpose for {request.request_id()}")

    def do_return_an_error(self, request):
        error = pb_utils.TritonError(f"refused on purpose for {request.request_id()}", pb_utils.TritonError.NOT_FOUND)
        return [pb_utils.InferenceResponse(error=error)]

    def do_send_an_error(self, request):
        error = pb_utils.TritonError(f"refused on purpose for {request.request_id()}", pb_utils.TritonError.UNAVAILABLE)
        sender = request.get_response_sender()
        sender.send(pb_utils.InferenceResponse(error=error), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def do_return_garbage(self, request):
        return ["not a response"]

    def do_return_too_many(self, request):
        return [answer(request), answer(request)]

    def do_return_no_list(self, request):
        return answer(request)

    def do_name_a_wrong_output(self, request):
        return [answer(request, "NOT_IN_CONFIG")]

    def do_let_go(self, request):
        """No response, and nobody has a sender."""
        return [None]

    def do_answer_twice(self, request):
        """The sender's response counts."""
        request.get_response_sender().send(answer(request), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return [answer(request)]

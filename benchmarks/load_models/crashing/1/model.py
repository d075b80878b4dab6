# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Squares; and now and then the end of its process, in the way that the request asks for."""

import os
import signal

import numpy as np
import triton_python_backend_utils as pb_utils

WAYS = {
    "exit": lambda: os._exit(3),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            how = pb_utils.get_input_tensor_by_name(request, "HOW")
            if how is not None:
                WAYS[how.as_numpy()[0].decode()]()
            numbers = pb_utils.get_input_tensor_by_name(request, "NUMBERS").as_numpy()
            outputs = [
                pb_utils.Tensor("ID", np.array([request.request_id().encode()], dtype=np.object_)),
                pb_utils.Tensor("SQUARES", numbers**2),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses

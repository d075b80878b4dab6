# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Streams COUNT responses to each of several requests at a time; at a COUNT of -1 its process ends with all of them."""

import asyncio
import os

import numpy as np
import triton_python_backend_utils as pb_utils

RESPONSE_S = 0.001


class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.gather(*(self.stream(request) for request in requests))

    async def stream(self, request):
        number = pb_utils.get_input_tensor_by_name(request, "NUMBER").as_numpy()
        count = pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy().item()
        if count < 0:
            os._exit(4)
        sender = request.get_response_sender()
        for index in range(count):
            outputs = [
                pb_utils.Tensor("ID", np.array([request.request_id().encode()], dtype=np.object_)),
                pb_utils.Tensor("NUMBER", number),
                pb_utils.Tensor("INDEX", np.array([index], dtype=np.int32)),
            ]
            sender.send(pb_utils.InferenceResponse(outputs))
            await asyncio.sleep(RESPONSE_S)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

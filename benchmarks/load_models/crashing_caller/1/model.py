# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls another model, and at HOW dies with calls under way, while it sees that one's memory; or has a callee die."""

import asyncio
import os
import signal

import numpy as np
import triton_python_backend_utils as pb_utils


def call(model, inputs, *outputs):
    tensors = [pb_utils.Tensor(name, array) for name, array in inputs.items()]
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=outputs, inputs=tensors).async_exec()


class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request):
        image = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
        response = await call("preprocess", {"IMAGE": image}, "NUMBER", "PIXELS")
        how = pb_utils.get_input_tensor_by_name(request, "HOW")
        if how is not None:
            await getattr(self, "die_" + how.as_numpy()[0].decode())(image)
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        outputs = [
            pb_utils.Tensor("ID", np.array([request.request_id().encode()], dtype=np.object_)),
            pb_utils.Tensor("NUMBER", pb_utils.get_output_tensor_by_name(response, "NUMBER").as_numpy()),
        ]
        return pb_utils.InferenceResponse(outputs)

    async def die_itself(self, image):
        under_way = [call("preprocess", {"IMAGE": image}, "NUMBER", "PIXELS") for _ in range(4)]
        await asyncio.sleep(0)  # so that they are
        os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.gather(*under_way)

    async def die_callee(self, image):
        inputs = {"HOW": np.array([b"exit"], dtype=np.object_), "NUMBERS": np.arange(3)}
        response = await call("crashing", inputs, "SQUARES")
        raise pb_utils.TritonModelException(response.error().message())

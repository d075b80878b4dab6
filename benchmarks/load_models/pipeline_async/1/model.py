# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What an image shows: three other models, of which the second is called twice at a time, for either half of it."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


async def call(model, inputs, *outputs):
    """These outputs of another model, as arrays."""
    request = pb_utils.InferenceRequest(
        model_name=model,
        requested_output_names=outputs,
        inputs=[pb_utils.Tensor(name, array) for name, array in inputs.items()],
    )
    response = await request.async_exec()
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return [pb_utils.get_output_tensor_by_name(response, name).as_numpy() for name in outputs]


class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request):
        image = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
        number, pixels = await call("preprocess", {"IMAGE": image}, "NUMBER", "PIXELS")
        halves = np.array_split(pixels[np.newaxis], 2, axis=1)
        (above,), (below,) = await asyncio.gather(*(call("classify", {"PIXELS": half}, "SCORES") for half in halves))
        (label,) = await call("postprocess", {"NUMBER": number, "SCORES": (above + below) / 2}, "LABEL")
        outputs = [
            pb_utils.Tensor("ID", np.array([request.request_id().encode()], dtype=np.object_)),
            pb_utils.Tensor("LABEL", label),
            pb_utils.Tensor("PIXELS", pixels),
        ]
        return pb_utils.InferenceResponse([each for each in outputs if each.name() in request.requested_output_names()])

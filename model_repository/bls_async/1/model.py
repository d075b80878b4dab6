# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Three other models at once: each gets the input in a form of its own, and none waits for another."""

import asyncio

import triton_python_backend_utils as pb_utils


async def call(model, arrays, output, renamed):
    """One output of another model, as an output of ours."""
    inputs = [pb_utils.Tensor(name, array) for name, array in arrays.items()]
    request = pb_utils.InferenceRequest(model_name=model, requested_output_names=[output], inputs=inputs)
    response = await request.async_exec()
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return pb_utils.Tensor(renamed, pb_utils.get_output_tensor_by_name(response, output).as_numpy())


class TritonPythonModel:
    async def execute(self, requests):
        # All calls of all requests are under way together.
        return await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request):
        array = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        outputs = await asyncio.gather(
            call("add_sub", {"INPUT0": array, "INPUT1": array}, "OUTPUT0", "SUM"),
            call("scaled", {"INPUT": array}, "OUTPUT", "SCALED"),
            call("auto_complete", {"INPUT": array.reshape(4, 4)}, "OUTPUT", "SQUARES"),
        )
        return pb_utils.InferenceResponse(outputs)

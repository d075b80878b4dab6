# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Adds up what two calls of a decoupled model send, both at once."""

    async def execute(self, requests):
        responses = []
        for request in requests:
            in_0 = pb_utils.get_input_tensor_by_name(request, "IN")
            infer_requests = [
                pb_utils.InferenceRequest(model_name=b"square_int32", inputs=[in_0], requested_output_names=[b"OUT"])
                for _ in range(2)
            ]
            iterators = await asyncio.gather(*[each.async_exec(decoupled=True) for each in infer_requests])
            response_sum = 0
            for infer_responses in iterators:
                for infer_response in infer_responses:
                    if infer_response.has_error():
                        raise pb_utils.TritonModelException(infer_response.error().message())
                    if infer_response.output_tensors():
                        response_sum += pb_utils.get_output_tensor_by_name(infer_response, "OUT").as_numpy()
            out = pb_utils.Tensor("SUM", np.array([response_sum], dtype=np.int32).reshape(1) // 2)
            responses.append(pb_utils.InferenceResponse([out]))
        return responses

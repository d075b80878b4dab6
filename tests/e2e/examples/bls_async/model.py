# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import asyncio
import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Calls two models at once: one adds, the other one subtracts."""

    def initialize(self, args):
        self.model_config = json.loads(args["model_config"])

    # An `async` function may await the calls of others.
    async def execute(self, requests):
        responses = []
        for request in requests:
            in_0 = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            in_1 = pb_utils.get_input_tensor_by_name(request, "INPUT1")
            inference_response_awaits = []
            for model_name, output in ((b"add_sub", "OUTPUT0"), ("add_sub", b"OUTPUT1")):
                infer_request = pb_utils.InferenceRequest(
                    model_name=model_name, requested_output_names=[output], inputs=[in_0, in_1]
                )
                inference_response_awaits.append(infer_request.async_exec())
            inference_responses = await asyncio.gather(*inference_response_awaits)
            for infer_response in inference_responses:
                if infer_response.has_error():
                    raise pb_utils.TritonModelException(infer_response.error().message())
            out_0 = pb_utils.get_output_tensor_by_name(inference_responses[0], "OUTPUT0")
            out_1 = pb_utils.get_output_tensor_by_name(inference_responses[1], "OUTPUT1")
            responses.append(pb_utils.InferenceResponse(output_tensors=[out_0, out_1]))
        return responses

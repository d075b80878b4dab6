# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Adds up what a decoupled model sends."""

    def execute(self, requests):
        responses = []
        for request in requests:
            in_0 = pb_utils.get_input_tensor_by_name(request, "IN")
            infer_request = pb_utils.InferenceRequest(
                model_name="square_int32", inputs=[in_0], requested_output_names=np.array(["OUT"])
            )
            infer_responses = infer_request.exec(decoupled=np.bool_(True))
            response_sum = np.int32(0)
            for infer_response in infer_responses:
                # The last response has no outputs.
                if len(infer_response.output_tensors()) > 0:
                    output0 = pb_utils.get_output_tensor_by_name(infer_response, "OUT")
                    response_sum += output0.as_numpy()[0]
            out = pb_utils.Tensor("SUM", np.array([response_sum], dtype=np.int32))
            responses.append(pb_utils.InferenceResponse([out]))
        return responses

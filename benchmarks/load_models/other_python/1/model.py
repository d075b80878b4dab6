# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Squares, under another Python than the server's; and a label from a model that runs under the server's."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "NUMBERS").as_numpy()
            inputs = [
                pb_utils.Tensor("NUMBER", numbers[:1]),
                pb_utils.Tensor("SCORES", np.array([[0, 1, 0, 0]], dtype=np.float32)),
            ]
            call = pb_utils.InferenceRequest(
                model_name="postprocess", requested_output_names=["LABEL"], inputs=inputs
            ).exec()
            if call.has_error():
                raise pb_utils.TritonModelException(call.error().message())
            outputs = [
                pb_utils.Tensor("ID", np.array([request.request_id().encode()], dtype=np.object_)),
                pb_utils.Tensor("SQUARES", numbers**2),
                pb_utils.Tensor("LABEL", pb_utils.get_output_tensor_by_name(call, "LABEL").as_numpy()),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses

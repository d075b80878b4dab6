# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Squares, by instances that are threads of one process."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "NUMBERS").as_numpy()
            outputs = [
                pb_utils.Tensor("ID", np.array([request.request_id().encode()], dtype=np.object_)),
                pb_utils.Tensor("SQUARES", numbers**2),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses

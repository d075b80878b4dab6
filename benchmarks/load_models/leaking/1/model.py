# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Sends COUNT responses and forgets to say that there are no more."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            number = pb_utils.get_input_tensor_by_name(request, "NUMBER").as_numpy()
            count = pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy().item()
            sender = request.get_response_sender()
            for index in range(count):
                outputs = [
                    pb_utils.Tensor("ID", np.array([request.request_id().encode()], dtype=np.object_)),
                    pb_utils.Tensor("NUMBER", number),
                    pb_utils.Tensor("INDEX", np.array([index], dtype=np.int32)),
                ]
                sender.send(pb_utils.InferenceResponse(outputs))

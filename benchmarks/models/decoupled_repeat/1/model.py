# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decoupled model: answers one request with COUNT responses."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            value = pb_utils.get_input_tensor_by_name(request, "VALUE").as_numpy()
            sender = request.get_response_sender()
            for i in range(count):
                sender.send(
                    pb_utils.InferenceResponse(
                        [
                            pb_utils.Tensor("INDEX", np.array([i], np.int32)),
                            pb_utils.Tensor("OUT", value),
                        ]
                    )
                )
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

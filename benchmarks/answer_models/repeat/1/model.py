# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Sends so many responses as it is told, one of which may be an error."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0]
            fails_at = pb_utils.get_input_tensor_by_name(request, "FAILS_AT")
            for index in range(count):
                if fails_at is not None and fails_at.as_numpy()[0] == index:
                    sender.send(pb_utils.InferenceResponse([], pb_utils.TritonError("as asked")))
                    continue
                tensor = pb_utils.Tensor("INDEX", np.array([index], np.int32))
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Returns as JSON what a model learns of its request besides the inputs."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            told = {
                "id": request.request_id(),
                "correlation_id": request.correlation_id(),
                "flags": request.flags(),
                "timeout": request.timeout(),
                "parameters": json.loads(request.parameters() or "{}"),
                "outputs": sorted(request.requested_output_names()),
            }
            text = np.array([json.dumps(told, sort_keys=True)], dtype=np.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", text)]))
        return responses

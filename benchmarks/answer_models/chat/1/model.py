# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Answers a prompt with itself, a sum of numbers and the request's parameters."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            text = arrays["PROMPT"][0].decode()
            if arrays.get("LOUD", [False])[0]:
                text = text.upper()
            numbers = arrays.get("NUMBERS", np.zeros(0, np.int32))
            parameters = json.dumps(json.loads(request.parameters() or "{}"), sort_keys=True)
            outputs = [
                pb_utils.Tensor("TEXT", np.array([f"{text} {parameters}"], dtype=np.object_)),
                pb_utils.Tensor("SUM", np.array([numbers.sum(), numbers.size], np.int64)),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses

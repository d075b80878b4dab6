# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Says what it has executed so far: of each batch, the shapes and values of its requests."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.batches = []

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        if any(array.size and array.flat[0] < 0 for array in arrays):
            error = pb_utils.TritonError("a negative number", pb_utils.TritonError.INVALID_ARG)
            return [pb_utils.InferenceResponse([], error) for _ in requests]
        self.batches.append([[list(array.shape), array.ravel().tolist()] for array in arrays])
        text = np.array([[json.dumps(self.batches)]], np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", text)]) for _ in requests]

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Version 3 adds a hundred, and says which version it is."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.version = np.array([int(args["model_version"])], dtype=np.int64)

    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            outputs = [pb_utils.Tensor("OUTPUT", array + 100), pb_utils.Tensor("VERSION", self.version)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses

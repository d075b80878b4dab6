# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Returns how many of its inputs a request has."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        counts = [np.array([len(request.inputs())], np.int32) for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("FOUND", count)]) for count in counts]

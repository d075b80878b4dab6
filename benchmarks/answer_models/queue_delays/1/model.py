# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Sleeps for so many milliseconds, and says how many requests it has executed."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            time.sleep(pb_utils.get_input_tensor_by_name(request, "MS").as_numpy()[0][0] / 1000)
            self.count += 1
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("COUNT", np.array([[self.count]], np.int32))]))
        return responses

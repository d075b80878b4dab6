# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Adds up its input, and says how often it has executed a request like this one. A negative number is an error."""

from collections import Counter

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.counts = Counter()

    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            self.counts[array.tobytes()] += 1
            if array.min(initial=0) < 0:
                error = pb_utils.TritonError("negative", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse([], error))
                continue
            sum_tensor = pb_utils.Tensor("SUM", np.array([array.sum()], np.int32))
            count_tensor = pb_utils.Tensor("COUNT", np.array([self.counts[array.tobytes()]], np.int32))
            responses.append(pb_utils.InferenceResponse([sum_tensor, count_tensor]))
        return responses

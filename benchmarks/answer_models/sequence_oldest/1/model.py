# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Sums up a sequence."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self._sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            arrays = {tensor.name(): tensor.as_numpy().ravel()[0] for tensor in request.inputs()}
            id = int(arrays["ID"])
            self._sums[id] = int(arrays["IN"]) + (0 if arrays["START"] else self._sums.get(id, 0))
            values = [self._sums[id], int(arrays["START"]), int(arrays["END"]), id]
            tensor = pb_utils.Tensor("OUT", np.array([values], np.int64))
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses

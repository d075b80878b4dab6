# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Squares, and which generation of this model they are by: the number in a file beside it, when it was loaded."""

import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        path = os.path.join(pb_utils.get_model_dir(), "generation")
        self.generation = 0
        if os.path.exists(path):
            with open(path) as file:
                self.generation = int(file.read())

    def execute(self, requests):
        responses = []
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "NUMBERS").as_numpy()
            outputs = [
                pb_utils.Tensor("ID", np.array([request.request_id().encode()], dtype=np.object_)),
                pb_utils.Tensor("SQUARES", numbers**2),
                pb_utils.Tensor("GENERATION", np.array([self.generation])),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A backend written in Python: models with `backend: "scale"` share this file, each with a factor of its own."""

from __future__ import annotations

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Multiplies INPUT by the parameter `factor` of the model's configuration."""

    def initialize(self, args: dict[str, str]) -> None:
        """Reads the factor."""
        parameters = json.loads(args["model_config"])["parameters"]
        self.factor = np.float32(parameters["factor"]["string_value"])

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Answers each request with OUTPUT, of the shape of INPUT."""
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", array * self.factor)]))
        return responses

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which of the four scores is the highest, and how high, in words that begin with the number of the image."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            number = pb_utils.get_input_tensor_by_name(request, "NUMBER").as_numpy().item()
            (scores,) = pb_utils.get_input_tensor_by_name(request, "SCORES").as_numpy()
            label = f"{number}:{scores.argmax()}:{scores.max():g}"
            tensor = pb_utils.Tensor("LABEL", np.array([label.encode()], dtype=np.object_))
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses

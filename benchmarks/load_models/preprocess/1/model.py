# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""An image at half its size, as floats; and the number in its first two pixels."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            image = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
            outputs = [
                pb_utils.Tensor("NUMBER", image.reshape(-1)[:8].view(np.int64)),
                pb_utils.Tensor("PIXELS", image[1::2, ::2].astype(np.float32)),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses

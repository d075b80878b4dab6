# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Text in UTF-8: upper-cased, and how many characters each element has."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            # A BYTES tensor is an array of `bytes` objects.
            texts = [each.decode() for each in pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()]
            upper = np.array([text.upper().encode() for text in texts], dtype=np.object_)
            lengths = np.array([len(text) for text in texts], dtype=np.int32)
            outputs = [pb_utils.Tensor("UPPER", upper), pb_utils.Tensor("LENGTHS", lengths)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses

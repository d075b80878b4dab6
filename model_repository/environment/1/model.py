# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Text in plain ASCII, by a package that the server itself does not have: see requirements.txt."""

import numpy as np
import triton_python_backend_utils as pb_utils
from text_unidecode import unidecode


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            texts = [each.decode() for each in pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()]
            plain = np.array([unidecode(text).encode() for text in texts], dtype=np.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("ASCII", plain)]))
        return responses

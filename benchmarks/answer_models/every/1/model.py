# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Returns the inputs that it gets, one for each datatype."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            outputs = [pb_utils.Tensor("Y" + tensor.name()[1:], tensor.as_numpy()) for tensor in request.inputs()]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses

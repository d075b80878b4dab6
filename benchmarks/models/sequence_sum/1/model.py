# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The sum of what the requests of a sequence had so far."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            number, flags = request.correlation_id(), request.flags()
            value = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            if not flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                value = self.sums[number] + value
            self.sums[number] = value
            if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
                del self.sums[number]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value)]))
        return responses

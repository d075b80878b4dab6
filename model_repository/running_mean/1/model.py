# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The mean of all that a sequence has sent so far. The model keeps nothing: the server keeps its states."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        value, total, count = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("VALUE", "SUM", "COUNT")
        )
        total, count = total + value, count + 1
        outputs = [
            pb_utils.Tensor("MEAN", (total / count).astype(value.dtype)),
            # Not for the client: the next request of the sequence has them as SUM and COUNT.
            pb_utils.Tensor("NEW_SUM", total),
            pb_utils.Tensor("NEW_COUNT", count),
        ]
        return pb_utils.InferenceResponse(outputs)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Softmax over a whole batch at once: the rows of all requests are computed together and handed out again."""

import numpy as np
import triton_python_backend_utils as pb_utils


def softmax(rows):
    exponentials = np.exp(rows - rows.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


class TritonPythonModel:
    def execute(self, requests):
        # A request may bring several rows; the batch has the rows of all.
        arrays = [pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy() for request in requests]
        batch = softmax(np.concatenate(arrays))
        ends = np.cumsum([len(array) for array in arrays])
        responses = []
        for rows in np.split(batch, ends[:-1]):
            batch_size = np.full((len(rows), 1), len(batch), dtype=np.int32)
            outputs = [pb_utils.Tensor("OUTPUT", rows), pb_utils.Tensor("BATCH_SIZE", batch_size)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Sums, counted on the metrics page by all instances together. The latest inputs are kept, as caches keep them."""

from collections import deque

import numpy as np
import triton_python_backend_utils as pb_utils

KEPT_MAX = 16


class TritonPythonModel:
    def initialize(self, args):
        family = pb_utils.MetricFamily
        self.families = [
            family("load_accumulated_requests", "Requests", family.COUNTER),
            family("load_accumulated_sum", "Sum of all numbers", family.GAUGE),
            family("load_accumulated_size", "Numbers of a request", family.HISTOGRAM),
        ]
        self.requests, self.sum = (each.Metric(labels={}) for each in self.families[:2])
        self.sizes = self.families[2].Metric(labels={}, buckets=[10, 100, 1000])
        self.kept = deque(maxlen=KEPT_MAX)

    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "NUMBERS")
            rows = tensor.as_numpy()
            self.kept.append(rows)
            self.requests.increment(1)
            self.sum.increment(int(rows.sum()))
            self.sizes.observe(rows.size)
            outputs = [
                pb_utils.Tensor("ID", np.array([[request.request_id().encode()]] * len(rows), dtype=np.object_)),
                pb_utils.Tensor("SUM", rows.sum(axis=1, keepdims=True)),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Adds up all that it ever gets, and tells of it on the server's metrics page: a counter, a gauge and a histogram."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        labels = {"model": args["model_name"], "version": args["model_version"]}
        # A family's metrics end with the family, and a family with its object: so they are kept, all of them.
        self.families = [
            pb_utils.MetricFamily("accumulator_values", "Values received", pb_utils.MetricFamily.COUNTER),
            pb_utils.MetricFamily("accumulator_total", "Sum of all values received", pb_utils.MetricFamily.GAUGE),
            pb_utils.MetricFamily("accumulator_size", "Values of a request", pb_utils.MetricFamily.HISTOGRAM),
        ]
        values, total, size = self.families
        self.values = values.Metric(labels=labels)
        self.total = total.Metric(labels=labels)
        self.size = size.Metric(labels=labels, buckets=[1, 10, 100])

    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            self.values.increment(array.size)
            self.total.increment(array.sum())
            self.size.observe(array.size)
            total = np.array([self.total.value()], dtype=np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TOTAL", total)]))
        return responses

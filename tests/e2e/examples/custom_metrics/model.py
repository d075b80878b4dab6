# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Counts its requests, and more, in metrics of its own."""

    def initialize(self, args):
        self.metric_family = pb_utils.MetricFamily(
            name="requests_process_latency_ns",
            description="Cumulative time spent processing requests",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        self.metric = self.metric_family.Metric(labels={"model": args["model_name"], "version": args["model_version"]})
        self.size_family = pb_utils.MetricFamily(
            name=b"request_elements", description=b"Elements of the last request", kind=pb_utils.MetricFamily.GAUGE
        )
        self.size = self.size_family.Metric(labels={np.str_("model"): np.str_(args["model_name"])})

    def execute(self, requests):
        responses = []
        for request in requests:
            in_0 = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            self.metric.increment(np.float32(0.5))
            self.metric.increment(np.sum(np.ones_like(in_0)))
            self.size.set(np.int64(in_0.size))
            pb_utils.Logger.log_info(f"Cumulative requests processing latency: {self.metric.value()}")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", in_0)]))
        return responses

    def finalize(self):
        print("Cleaning up...")

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import argparse
import json

import numpy as np
import triton_python_backend_utils as pb_utils

parser = argparse.ArgumentParser()
parser.add_argument("--timeout", type=np.int64, default=np.int64(10**9))


class TritonPythonModel:
    """Calls the model that the request names, and returns what that returns."""

    def initialize(self, args):
        self.options = parser.parse_args()
        self.model_config = json.loads(args["model_config"])
        print("the calls have", self.options)

    def execute(self, requests):
        responses = []
        for request in requests:
            in_0 = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            in_1 = pb_utils.get_input_tensor_by_name(request, "INPUT1")
            # A tensor of strings has bytes.
            model_name = pb_utils.get_input_tensor_by_name(request, "MODEL_NAME").as_numpy()[0]
            outputs = [each["name"].encode() for each in self.model_config["output"]]
            if not pb_utils.is_model_ready(model_name):
                pb_utils.Logger.log_warn(b"not ready: " + model_name)
            infer_request = pb_utils.InferenceRequest(
                model_name=model_name,
                model_version=np.int64(-1),
                requested_output_names=outputs,
                inputs=(in_0, in_1),
                request_id=b"from " + model_name,
                correlation_id=np.uint64(7),
                timeout=self.options.timeout,
                flags=np.uint32(0),
            )
            infer_response = infer_request.exec()
            if infer_response.has_error():
                message = infer_response.error().message().encode()
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(b"called in vain: " + message)))
                continue
            tensors = [
                pb_utils.Tensor(each.name().encode(), each.as_numpy()) for each in infer_response.output_tensors()
            ]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Makes a new generation of the model `reloaded`, has it loaded, and asks it which generation it is."""

import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.path = os.path.join(pb_utils.get_model_dir(), "..", "..", "reloaded", "1", "generation")

    def execute(self, requests):
        return [self.reload(request) for request in requests]

    def reload(self, request):
        generation = pb_utils.get_input_tensor_by_name(request, "GENERATION").as_numpy().item()
        with open(self.path, "w") as file:
            file.write(str(generation))
        pb_utils.load_model("reloaded")
        call = pb_utils.InferenceRequest(
            model_name="reloaded",
            requested_output_names=["GENERATION"],
            inputs=[pb_utils.Tensor("NUMBERS", np.arange(3))],
        ).exec()
        if call.has_error():
            raise pb_utils.TritonModelException(call.error().message())
        outputs = [
            pb_utils.Tensor("ID", np.array([request.request_id().encode()], dtype=np.object_)),
            pb_utils.Tensor("GENERATION", pb_utils.get_output_tensor_by_name(call, "GENERATION").as_numpy()),
        ]
        return pb_utils.InferenceResponse(outputs)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A pipeline of two other models: their sum by add_sub, and that scaled by scaled."""

import triton_python_backend_utils as pb_utils


def call(model, inputs, output):
    """One output of another model."""
    request = pb_utils.InferenceRequest(model_name=model, requested_output_names=[output], inputs=inputs)
    response = request.exec()
    # An error of the other model is no exception here: it is up to us what follows from it.
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return pb_utils.get_output_tensor_by_name(response, output)


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            total = call("add_sub", request.inputs(), "OUTPUT0")
            # What was the other model's output is an input under another name: its contents stay where they are.
            scaled = call("scaled", [pb_utils.Tensor.from_dlpack("INPUT", total)], "OUTPUT")
            responses.append(pb_utils.InferenceResponse([scaled]))
        return responses

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Takes its inputs through three other models, one after the other, awaiting each."""

import triton_python_backend_utils as pb_utils

STEPS = ("pipeline_double", "pipeline_add_sub", "pipeline_halve")


def next_inputs(response):
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return [pb_utils.Tensor("INPUT" + tensor.name()[-1], tensor.as_numpy()) for tensor in response.output_tensors()]


class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            tensors = request.inputs()
            for step in STEPS:
                call = pb_utils.InferenceRequest(
                    model_name=step, requested_output_names=["OUTPUT0", "OUTPUT1"], inputs=tensors
                )
                tensors = next_inputs(await call.async_exec())
            outputs = [pb_utils.Tensor("OUTPUT" + tensor.name()[-1], tensor.as_numpy()) for tensor in tensors]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses

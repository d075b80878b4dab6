# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What an image shows: three other models, one after the other. PIXELS, if they are asked for, are another model's."""

import numpy as np
import triton_python_backend_utils as pb_utils


def call(model, inputs, *outputs):
    """These outputs of another model, as arrays."""
    request = pb_utils.InferenceRequest(
        model_name=model,
        requested_output_names=outputs,
        inputs=[pb_utils.Tensor(name, array) for name, array in inputs.items()],
    )
    response = request.exec()
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return [pb_utils.get_output_tensor_by_name(response, name).as_numpy() for name in outputs]


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            image = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
            number, pixels = call("preprocess", {"IMAGE": image}, "NUMBER", "PIXELS")
            (scores,) = call("classify", {"PIXELS": pixels[np.newaxis]}, "SCORES")
            (label,) = call("postprocess", {"NUMBER": number, "SCORES": scores}, "LABEL")
            outputs = [
                pb_utils.Tensor("ID", np.array([request.request_id().encode()], dtype=np.object_)),
                pb_utils.Tensor("LABEL", label),
                pb_utils.Tensor("PIXELS", pixels),
            ]
            wanted = request.requested_output_names()
            responses.append(pb_utils.InferenceResponse([each for each in outputs if each.name() in wanted]))
        return responses

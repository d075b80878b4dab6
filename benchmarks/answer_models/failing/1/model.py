# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Fails as its input says: by an exception, or by the error code of that name."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._respond(pb_utils.get_input_tensor_by_name(request, "HOW").as_numpy()[0]) for request in requests]

    def _respond(self, how):
        how = how.decode()
        if how == "model exception":
            raise pb_utils.TritonModelException("as asked")
        if how == "another exception":
            raise KeyError("as asked")
        if how == "no outputs":
            return pb_utils.InferenceResponse([])
        if how == "datatype":
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.float32))])
        if how == "name":
            return pb_utils.InferenceResponse([pb_utils.Tensor("OTHER", np.zeros(1, np.int32))])
        if how == "none":
            return None
        error = pb_utils.TritonError("as asked", getattr(pb_utils.TritonError, how))
        return pb_utils.InferenceResponse([], error)

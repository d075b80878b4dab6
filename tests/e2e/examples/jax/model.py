# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            in_0 = jnp.array(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())
            in_1 = jax.dlpack.from_dlpack(pb_utils.get_input_tensor_by_name(request, "INPUT1"))
            out_tensor_0 = pb_utils.Tensor("OUTPUT0", np.array(in_0 + in_1))
            out_tensor_1 = pb_utils.Tensor("OUTPUT1", np.asarray(in_0 - in_1))
            responses.append(pb_utils.InferenceResponse([out_tensor_0, out_tensor_1]))
        return responses

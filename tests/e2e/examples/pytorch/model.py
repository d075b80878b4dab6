# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import json

import torch
import triton_python_backend_utils as pb_utils
from torch import nn


class AddSubNet(nn.Module):
    """Adds and subtracts two tensors."""

    def forward(self, input0, input1):
        return (input0 + input1), (input0 - input1)


class TritonPythonModel:
    def initialize(self, args):
        self.model_config = json.loads(args["model_config"])
        self.add_sub_model = AddSubNet()

    def execute(self, requests):
        responses = []
        for request in requests:
            in_0 = torch.from_numpy(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())
            in_1 = torch.utils.dlpack.from_dlpack(pb_utils.get_input_tensor_by_name(request, "INPUT1").to_dlpack())
            out_0, out_1 = self.add_sub_model(in_0, in_1)
            out_tensor_0 = pb_utils.Tensor("OUTPUT0", out_0.numpy())
            out_tensor_1 = pb_utils.Tensor.from_dlpack(b"OUTPUT1", torch.utils.dlpack.to_dlpack(out_1))
            responses.append(pb_utils.InferenceResponse([out_tensor_0, out_tensor_1]))
        return responses

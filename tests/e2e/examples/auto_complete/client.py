# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import tritonclient.http as httpclient
from tritonclient.utils import np_to_triton_dtype

model_name = "auto_complete"
shape = [4]

with httpclient.InferenceServerClient(sys.argv[1]) as client:
    input0_data = np.random.rand(*shape).astype(np.float32)
    input1_data = np.random.rand(*shape).astype(np.float32)
    inputs = [
        httpclient.InferInput("INPUT0", input0_data.shape, np_to_triton_dtype(input0_data.dtype)),
        httpclient.InferInput("INPUT1", input1_data.shape, np_to_triton_dtype(input1_data.dtype)),
    ]
    inputs[0].set_data_from_numpy(input0_data)
    inputs[1].set_data_from_numpy(input1_data)
    outputs = [httpclient.InferRequestedOutput("OUTPUT0"), httpclient.InferRequestedOutput("OUTPUT1")]
    response = client.infer(model_name, inputs, request_id=str(1), outputs=outputs)
    assert response.get_response()["id"] == "1"
    output0_data = response.as_numpy("OUTPUT0")
    output1_data = response.as_numpy("OUTPUT1")
    print(f"{input0_data} + {input1_data} = {output0_data}")
    if not np.allclose(input0_data + input1_data, output0_data):
        sys.exit("error: incorrect sum")
    if not np.allclose(input0_data - input1_data, output1_data):
        sys.exit("error: incorrect difference")
    print("PASS: auto_complete")

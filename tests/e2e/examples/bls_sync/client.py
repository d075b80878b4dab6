# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

with httpclient.InferenceServerClient(sys.argv[1]) as client:
    input0_data = np.random.rand(4).astype(np.float32)
    input1_data = np.random.rand(4).astype(np.float32)

    def infer(model):
        inputs = [
            httpclient.InferInput("MODEL_NAME", [1], np_to_triton_dtype(np.object_)),
            httpclient.InferInput("INPUT0", [4], "FP32"),
            httpclient.InferInput("INPUT1", [4], "FP32"),
        ]
        inputs[0].set_data_from_numpy(np.array([model], dtype=np.object_))
        inputs[1].set_data_from_numpy(input0_data)
        inputs[2].set_data_from_numpy(input1_data)
        return client.infer("bls_sync", inputs)

    response = infer("add_sub")
    assert np.allclose(response.as_numpy("OUTPUT0"), input0_data + input1_data)
    assert np.allclose(response.as_numpy("OUTPUT1"), input0_data - input1_data)
    try:
        infer("undefined_model")
    except InferenceServerException as error:
        message = error.message()
    else:
        sys.exit("error: a call of an undefined model should fail")
    print(message)
    assert message.startswith("called in vain: ")
    assert message.endswith("Model 'undefined_model' is not ready.")
    print("PASS: BLS Sync")

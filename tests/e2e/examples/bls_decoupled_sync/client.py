# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import tritonclient.http as httpclient

model_name = "bls_decoupled_sync"

with httpclient.InferenceServerClient(sys.argv[1]) as client:
    for in_value in [4, 2, 0, 1]:
        inputs = [httpclient.InferInput("IN", [1], "INT32")]
        inputs[0].set_data_from_numpy(np.array([in_value], dtype=np.int32))
        output0_data = client.infer(model_name, inputs).as_numpy("SUM")
        assert output0_data == [in_value * in_value], output0_data
print("PASS: " + model_name)

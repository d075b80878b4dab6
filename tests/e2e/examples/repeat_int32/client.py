# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import queue
import sys

import numpy as np
import tritonclient.grpc as grpcclient

completed = queue.Queue()
in_value, delay_value, wait_value = [4, 2, 0, 1], [1, 2, 3, 4], [5]
inputs = [
    grpcclient.InferInput("IN", [len(in_value)], "INT32"),
    grpcclient.InferInput("DELAY", [len(delay_value)], "UINT32"),
    grpcclient.InferInput("WAIT", [1], "UINT32"),
]
inputs[0].set_data_from_numpy(np.array(in_value, dtype=np.int32))
inputs[1].set_data_from_numpy(np.array(delay_value, dtype=np.uint32))
inputs[2].set_data_from_numpy(np.array(wait_value, dtype=np.uint32))
with grpcclient.InferenceServerClient(url=sys.argv[2], verbose=False) as client:
    client.start_stream(callback=lambda result, error: completed.put(error or result))
    client.async_stream_infer("repeat_int32", inputs, request_id="0", enable_empty_final_response=True)
    recv_count = 0
    while True:
        result = completed.get()
        if isinstance(result, Exception):
            raise result
        if result.get_response().parameters["triton_final_response"].bool_param:
            break
        assert result.as_numpy("IDX")[0] == recv_count
        assert result.as_numpy("OUT")[0] == in_value[recv_count]
        recv_count += 1
assert recv_count == len(in_value)
print("PASS: repeat_int32")

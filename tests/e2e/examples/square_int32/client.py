# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import queue
import sys
from functools import partial

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException


class UserData:
    def __init__(self):
        self._completed_requests = queue.Queue()


def callback(user_data, result, error):
    user_data._completed_requests.put(error if error else result)


in_values = [4, 2, 0, 1]
user_data = UserData()
with grpcclient.InferenceServerClient(url=sys.argv[2]) as triton_client:
    triton_client.start_stream(callback=partial(callback, user_data))
    for i, value in enumerate(in_values):
        inputs = [grpcclient.InferInput("IN", [1], "INT32")]
        inputs[0].set_data_from_numpy(np.array([value], dtype=np.int32))
        triton_client.async_stream_infer(model_name="square_int32", inputs=inputs, request_id=str(i))
    found = {}
    for _ in range(sum(in_values)):
        data_item = user_data._completed_requests.get()
        if isinstance(data_item, InferenceServerException):
            raise data_item
        found.setdefault(data_item.get_response().id, []).append(data_item.as_numpy("OUT")[0])
assert found == {str(i): [value] * value for i, value in enumerate(in_values) if value}, found
print("PASS: square_int32")

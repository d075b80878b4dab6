# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import re
import sys
import urllib.request

import numpy as np
import tritonclient.http as httpclient


def get_metrics():
    with urllib.request.urlopen(f"http://{sys.argv[3]}/metrics") as response:
        return response.read().decode()


with httpclient.InferenceServerClient(sys.argv[1]) as client:
    inputs = [httpclient.InferInput("INPUT0", [4], "FP32")]
    inputs[0].set_data_from_numpy(np.random.rand(4).astype(np.float32))
    client.infer("custom_metrics", inputs)

metrics = get_metrics()
for pattern, expected in (
    (r'requests_process_latency_ns{model="custom_metrics",version="1"} (\S+)', 4.5),
    (r'request_elements{model="custom_metrics"} (\S+)', 4),
):
    found = re.search(pattern, metrics)
    assert found, metrics
    assert float(found[1]) == expected, metrics
print("PASS: custom_metrics")

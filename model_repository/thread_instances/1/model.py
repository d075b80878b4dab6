# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Instances that share what the model has in memory: weights that are loaded once, and used by four threads."""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

COMPUTE_S = (
    0.2  # So that it can be watched. What computes without Python's lock, as numpy and torch do, uses all cores.
)


class TritonPythonModel:
    def initialize(self, args):
        # Once for all threads; what they change needs a lock.
        self.weights = np.eye(4, dtype=np.float32) * 3
        self.lock = threading.Lock()
        self.running = 0

    def execute(self, requests):
        with self.lock:
            self.running += 1
        time.sleep(COMPUTE_S / 2)
        at_once = np.array([self.running], dtype=np.int32)
        time.sleep(COMPUTE_S / 2)
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            outputs = [pb_utils.Tensor("OUTPUT", self.weights @ array), pb_utils.Tensor("AT_ONCE", at_once)]
            responses.append(pb_utils.InferenceResponse(outputs))
        with self.lock:
            self.running -= 1
        return responses

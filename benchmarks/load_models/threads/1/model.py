# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Answers each request from ten threads: COUNT responses, of which each thread sends a tenth, and the last one the end.

Every thread also keeps its own order: what it sends has growing indexes.
"""

import queue
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

THREADS = 10


class Shared:
    """A request, and how many threads have not finished it."""

    def __init__(self, request):
        self.id = request.request_id()
        # A copy: the threads go on when the request's memory is another's.
        self.number = pb_utils.get_input_tensor_by_name(request, "NUMBER").as_numpy().copy()
        self.count = pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy().item()
        self.sender = request.get_response_sender()
        self.left = THREADS
        self.lock = threading.Lock()


class TritonPythonModel:
    def initialize(self, args):
        self.queues = [queue.SimpleQueue() for _ in range(THREADS)]
        self.threads = [threading.Thread(target=self.run, args=(first,)) for first in range(THREADS)]
        for thread in self.threads:
            thread.start()

    def execute(self, requests):
        for request in requests:
            shared = Shared(request)
            for each in self.queues:
                each.put(shared)

    def finalize(self):
        for each in self.queues:
            each.put(None)
        for thread in self.threads:
            thread.join()

    def run(self, first):
        while (shared := self.queues[first].get()) is not None:
            for index in range(first, shared.count, THREADS):
                if not shared.sender.is_cancelled():
                    shared.sender.send(self.answer(shared, index))
            with shared.lock:
                shared.left -= 1
                last = not shared.left
            if last:
                shared.sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def answer(self, shared, index):
        outputs = [
            pb_utils.Tensor("ID", np.array([shared.id.encode()], dtype=np.object_)),
            pb_utils.Tensor("NUMBER", shared.number),
            pb_utils.Tensor("INDEX", np.array([index], dtype=np.int32)),
        ]
        return pb_utils.InferenceResponse(outputs)

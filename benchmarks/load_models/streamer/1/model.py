# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Streams COUNT tokens of SIZE bytes, or tokens without end if COUNT is -1, and counts how its streams end."""

import asyncio
import itertools

import numpy as np
import triton_python_backend_utils as pb_utils

TOKEN_S = 0.001


def text(string):
    return np.array([string.encode()], dtype=np.object_)


class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily("load_streams", "Streams, by how they end", pb_utils.MetricFamily.COUNTER)
        self.ends = {how: self.family.Metric(labels={"how": how}) for how in ("begun", "whole", "cancelled")}

    async def execute(self, requests):
        await asyncio.gather(*(self.stream(request) for request in requests))

    async def stream(self, request):
        number, count, size = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("NUMBER", "COUNT", "SIZE")
        )
        sender = request.get_response_sender()
        self.ends["begun"].increment(1)
        indexes = range(count.item()) if count.item() >= 0 else itertools.count()
        for index in indexes:
            if sender.is_cancelled():
                self.ends["cancelled"].increment(1)
                break
            outputs = [
                pb_utils.Tensor("ID", text(request.request_id())),
                pb_utils.Tensor("NUMBER", number),
                pb_utils.Tensor("INDEX", np.array([index], dtype=np.int32)),
                pb_utils.Tensor("TOKEN", text(chr(ord("a") + index % 26) * size.item())),
            ]
            sender.send(pb_utils.InferenceResponse(outputs))
            await asyncio.sleep(TOKEN_S)
        else:
            self.ends["whole"].increment(1)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

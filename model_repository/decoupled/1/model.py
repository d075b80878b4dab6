# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Streams a text word by word, as language models stream tokens, until it is at its end or its client hangs up."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils

TOKEN_S = 0.05  # So that the words can be watched; a real model would compute for as long.


class TritonPythonModel:
    async def execute(self, requests):
        # A coroutine: while it waits the next request is executed, so that several are streamed at a time.
        await asyncio.gather(*(self.stream(request) for request in requests))

    async def stream(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[0].decode()
        repeat = pb_utils.get_input_tensor_by_name(request, "REPEAT")
        sender = request.get_response_sender()
        for index, word in enumerate(text.split() * (1 if repeat is None else repeat.as_numpy()[0])):
            if sender.is_cancelled():
                pb_utils.Logger.log_info(f"the client hung up after {index} words")
                break
            outputs = [
                pb_utils.Tensor("TOKEN", np.array([word.encode()], dtype=np.object_)),
                pb_utils.Tensor("INDEX", np.array([index], dtype=np.int32)),
            ]
            if hasattr(
                sender, "wait_for_room"
            ):  # not in Triton, where responses pile up for a client that does not read
                await sender.wait_for_room()
            sender.send(pb_utils.InferenceResponse(outputs))
            await asyncio.sleep(TOKEN_S)
        # The end may also come with the last response: send(response, flags=...).
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

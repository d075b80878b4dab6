# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Many streams of a language model in flight at a time, called by eight instances of an async model.

The callee is made as vLLM's backend: execute returns at once, and an event loop in a thread of the model's own
generates for all requests together and sends tokens by their senders.
"""

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from .harness.waiting import LIMIT_S

CALLERS, CLIENTS, REQUESTS = 8, 48, 6000
# The calls of one request, all in flight together, and the tokens of each.
CALLS, TOKENS = 4, 5
ENGINE = f"""
import asyncio
import threading

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def initialize(self, args):
        self.finished = 0
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def execute(self, requests):
        for request in requests:
            if request.request_id() == "count":
                request.get_response_sender().send(self.response(self.finished), FINAL)
            else:
                asyncio.run_coroutine_threadsafe(self.generate(request), self.loop)
        return None

    async def generate(self, request):
        number, sender = int(request.inputs()[0].as_numpy()[0]), request.get_response_sender()
        for token in range({TOKENS}):
            await asyncio.sleep(0)
            sender.send(self.response(number * {TOKENS} + token))
        self.finished += 1
        sender.send(flags=FINAL)

    def response(self, number):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number]))])
"""
CALLER = f"""
import asyncio

class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*map(self.answer, requests))

    async def answer(self, request):
        first = int(request.inputs()[0].as_numpy()[0, 0])
        tokens = await asyncio.gather(*[self.generate(first + call) for call in range({CALLS})])
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.concatenate(tokens)[np.newaxis])])

    async def generate(self, number):
        prompt = [pb_utils.Tensor("IN", np.array([number]))]
        call = pb_utils.InferenceRequest(model_name="engine", inputs=prompt, requested_output_names=["OUT"])
        tokens = []
        for response in await call.async_exec(decoupled=True):
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            tokens += [tensor.as_numpy() for tensor in response.output_tensors()]
        return np.concatenate(tokens)
"""
BATCHES = f"max_batch_size: 8 dynamic_batching {{}} instance_group [ {{ kind: KIND_CPU count: {CALLERS} }} ]"


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    repository = tmp_path_factory.mktemp("in_flight")
    write_model(repository, "engine", ENGINE, more="model_transaction_policy { decoupled: true }")
    write_model(repository, "caller", CALLER, more=BATCHES)
    with serving(repository) as server:
        yield server


def ask(server, numbers):
    """The outputs of the caller for these numbers, each in a request of its own, over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    found = []
    with closing(connection):
        for number in numbers:
            tensor = {"name": "IN", "datatype": "INT64", "shape": [1, 1], "data": [number]}
            connection.request("POST", "/v2/models/caller/infer", json.dumps({"inputs": [tensor]}))
            response = json.loads(connection.getresponse().read())
            found.append(response["outputs"][0]["data"] if "outputs" in response else response)
    return found


def generated(server):
    """How many streams the engine has ended."""
    answer = server.request("POST", "/v2/models/engine/generate", json.dumps({"id": "count", "IN": [0]}))
    return json.loads(answer.body)["OUT"]


def test_no_stream_is_lost_or_mixed_up_of_thousands_in_flight(server):
    firsts = [
        [client * REQUESTS * CALLS + each * CALLS for each in range(REQUESTS // CLIENTS)] for client in range(CLIENTS)
    ]
    with ThreadPoolExecutor(CLIENTS) as clients:
        found = list(clients.map(lambda numbers: ask(server, numbers), firsts))
    for numbers, answers in zip(firsts, found, strict=True):
        for number, answer in zip(numbers, answers, strict=True):
            assert answer == [*range(number * TOKENS, (number + CALLS) * TOKENS)]
    assert generated(server) == REQUESTS * CALLS

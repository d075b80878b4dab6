# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Clients whose inputs and outputs lie in memory on a GPU, which they register; their requests come over HTTP."""

import json

from pyruntime.utils.errors import InferenceError

from .brokers import FAULTY_LIVES, GPUS
from .http_clients import HttpClient
from .tensors import HOP, pack, request_of, value_of

# The bytes of one tensor; each request has a place for its input and one for its output.
TENSOR_BYTES = 16
PLACES_BYTES = 2 * TENSOR_BYTES
REQUESTS_MAX = 8
# How often a client tries again: brokers with faults are fewer, and one that refuses every other time refuses all of
# these in one of 4 billion scenarios.
TRIES = FAULTY_LIVES * 8


class GpuClient(HttpClient):
    """See the module. It does all else that clients over HTTP do."""

    kinds = ("gpu", "input", "output", "json", "health", "nonsense")
    weights = (8, 3, 3, 1, 1, 1)

    def __init__(self, world, draw, model, first):
        super().__init__(world, draw, model, first)
        self._name = f"region_{first}"
        self._gpu = draw.randrange(GPUS)
        self._handle = world.devices.allocate(REQUESTS_MAX * PLACES_BYTES)
        self._contents = world.devices.memory[self._handle]
        self._is_registered = False
        self._unregisters = draw.choice(("early", "at its end", "at its end", "never"))

    async def run(self):
        """Register the memory, send everything, and see that the memory can be read whatever became of the brokers."""
        memory = self._world.state.client_memory
        for left in reversed(range(TRIES)):
            try:
                await memory.register_cuda(self._name, self._handle, self._gpu, len(self._contents))
            except InferenceError as exc:
                self._world.note("not registered", self._name, int(exc.code))
                if not left:
                    self._world.ledger.violated(f"{self._name} can never be registered: {exc}")
                    return
            else:
                break
        self._is_registered = True
        self._world.devices.registered.add(self._name)
        if self._unregisters == "early":
            self._world.loop.call_later(self._draw.choice((0.0005, 0.01)), self._unregister)
        await super().run()
        if self._is_registered:
            await self._probe()
        if self._unregisters != "never":
            self._unregister()

    def _unregister(self):
        if self._is_registered:
            self._is_registered = False
            self._world.devices.registered.discard(self._name)
            work = self._world.state.client_memory.unregister_cuda(self._name)
            self._world.tasks.create_task(work, name=f"unregister {self._name}")

    async def _probe(self):
        """Have the registered memory copied, by whichever broker there is."""
        world = self._world
        contents = world.state.client_memory.input("IN", "INT64", [2], self._name, 0, TENSOR_BYTES).gpu
        self._contents[:TENSOR_BYTES] = pack(self._first, 2)
        region = world.memory.create_region("probe", in_need=True)
        contents.memory.count_on()
        try:
            for left in reversed(range(TRIES)):
                try:
                    await contents.memory.read(0, TENSOR_BYTES, region, 0)
                except InferenceError as exc:
                    world.note("not read", self._name, int(exc.code))
                    if not left:
                        world.ledger.violated(f"{self._name} can never be read again: {exc}")
                else:
                    if value_of(region.view[:TENSOR_BYTES]) != self._first:
                        world.ledger.violated(f"{self._name} is read wrongly")
                    break
        finally:
            contents.memory.close()
            region.close()

    def _request(self, due):
        if due.kind not in ("gpu", "input", "output"):
            return super()._request(due)
        at = (due.number - self._first) * PLACES_BYTES
        document = json.loads(self._document(due.number)[0])
        if due.kind != "output":
            self._contents[at : at + TENSOR_BYTES] = pack(due.number, 2)
            (tensor,) = document["inputs"]
            del tensor["data"]
            tensor["parameters"] = self._place(at)
        if due.kind != "input":
            document["outputs"] = [{"name": "OUT", "parameters": self._place(at + TENSOR_BYTES)}]
        return self._post(f"/v2/models/{self._model.name}/infer", json.dumps(document).encode())

    def _place(self, at):
        return {
            "shared_memory_region": self._name,
            "shared_memory_offset": at,
            "shared_memory_byte_size": TENSOR_BYTES,
        }

    def _refused(self, due, status, body):
        if self._is_registered and b"shared memory region: '" in body:
            self._world.ledger.violated(f"request {due.number} does not find {self._name}: {body}")

    def _check(self, due, headers, body):
        if due.kind not in ("gpu", "output"):
            super()._check(due, headers, body)
            return
        document = json.loads(body)
        at = (due.number - self._first) * PLACES_BYTES + TENSOR_BYTES
        value = value_of(self._contents[at : at + TENSOR_BYTES])
        if document.get("id") != str(due.number) or value < HOP or request_of(value) != due.number:
            self._world.ledger.violated(
                f"request {due.number} is answered, and its place on the GPU has {value}: {document.get('id')}"
            )

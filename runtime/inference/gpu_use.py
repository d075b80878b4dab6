# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The use of client memory on GPUs by one request.

Inputs are copied from there to the model's request region, or to the GPU where the model reads them, before the request
is checked, unless the model reads them where they are.
Outputs are copied there before the client has the response. The brokers of the GPUs copy while the event loop goes on.
They read and write the regions themselves, so nothing is copied twice.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from functools import partial

from pyruntime.runtime.execution.job import Job, Respond
from pyruntime.runtime.gpus.tensor_places import reads_of
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.memory.client_use import Reading
from pyruntime.runtime.memory.gpu_copies import wait_all
from pyruntime.runtime.memory.gpu_peers import GpuPeers, Moved, Tensor
from pyruntime.runtime.regions import GpuRegion, SharedRegion, create_region
from pyruntime.runtime.requests.types import (
    GpuContents,
    GpuPlace,
    InferRequest,
    InferResponse,
    InputTensor,
    OnGpu,
    OutputTensor,
    keep_open,
)
from pyruntime.utils.addresses import address, split
from pyruntime.utils.dtypes import BY_NAME
from pyruntime.utils.errors import Code, InferenceError, OutOfMemoryError
from pyruntime.utils.gpu.driver import ALIGNED_BYTES
from pyruntime.utils.request_codec import MEMORY_GPU, OutputPlaceRef, TensorRef

# An input, and where it lies.
_Input = tuple[InputTensor, GpuContents]


class GpuUse:
    """See the module. `respond` is to be called instead of the request's own, which is `client`.

    Until the last response, or `end`, the memory stays registered. Belongs to the event loop's thread.
    """

    def __init__(self, request: InferRequest, client: Respond, tasks: asyncio.TaskGroup, peers: GpuPeers) -> None:
        self._inputs = [(each, each.gpu) for each in request.inputs if isinstance(each.gpu, GpuContents)]
        self._left: dict[str, OnGpu] = {}
        self._places = request.gpu_places or {}
        self._client = client
        self._tasks = tasks
        self._peers = peers
        self._memory = [contents.memory for _, contents in self._inputs]
        self._memory += [place.contents.memory for place in self._places.values()]
        for memory in self._memory:
            memory.count_on()
        # The responses whose outputs are being copied, and those behind them, each with whether it is the last one.
        self._waiting: deque[tuple[asyncio.Task[InferResponse | InferenceError] | _Outcome, bool]] = deque()

    async def fetch(self, request: InferRequest, model: ModelVersion) -> None:
        """Copy the inputs to where the model reads them. Raises InferenceError; the caller frees the request then.

        Nothing is copied for a request with more inputs than the model has, which the caller is about to refuse. It
        must not be cancelled, because the brokers write to the memory of the request nevertheless.
        """
        if not self._inputs or len(request.inputs) > len(model.spec.inputs):
            return
        model.check_serving()
        moving = self._leave_some(request, model)
        model.expect()
        try:
            for gpu, inputs in moving.items():
                tensors = [Tensor(each.memory.for_stubs(), each.offset, each.size) for _, each in inputs]
                moved = await self._peers.move(tensors, gpu, model.memory)
                request.slots.append(moved.slot)
                self._refer_to(moved, inputs)
        finally:
            model.arrived()

    def _leave_some(self, request: InferRequest, model: ModelVersion) -> dict[int | None, list[_Input]]:
        """Leave inputs on the GPU which the model reads there. Returns the others, by the GPU that they are read on."""
        others: dict[int | None, list[_Input]] = defaultdict(list)
        reads = reads_of(model.on_gpus)
        for tensor, contents in self._inputs:
            memory, has_size = contents.memory, tensor.datatype in BY_NAME and BY_NAME[tensor.datatype].size
            gpu = reads.get(tensor.name) if contents.size and has_size else None
            if gpu != memory.device_id:
                others[gpu].append((tensor, contents))
            elif contents.offset % ALIGNED_BYTES:
                others[None].append((tensor, contents))
            else:
                region = memory.for_stubs()
                self._leave(tensor, address(region.number, contents.offset), OnGpu(region, contents.size))
                request.slots.append(Reading([region, memory]))
        return others

    def _leave(self, tensor: InputTensor, at: int, there: OnGpu) -> None:
        tensor.offset = at
        tensor.gpu = self._left[tensor.name] = there

    def _refer_to(self, moved: Moved, inputs: list[_Input]) -> None:
        """Have inputs refer to their copies."""
        for (tensor, contents), at in zip(inputs, moved.addresses, strict=True):
            if isinstance(moved.region, GpuRegion):
                self._leave(tensor, at, OnGpu(moved.region, contents.size))
            else:
                tensor.offset = split(at)[1]
                tensor.data = moved.region.view[tensor.offset : tensor.offset + contents.size]

    def refer(self, job: Job) -> None:
        """Have the request refer to the inputs that were left on the GPU."""
        if self._left:
            job.regions = [*job.regions, *dict.fromkeys(there.memory for there in self._left.values())]
            tensors: list[TensorRef] = []
            for tensor in job.tensors:
                there = self._left.get(tensor[0])
                if there is not None:
                    tensor = (*tensor[:4], there.byte_size, MEMORY_GPU, there.memory.gpu.ordinal)
                tensors.append(tensor)
            job.tensors = tensors

    def places_on_gpu(self, model: ModelVersion) -> dict[str, OutputPlaceRef] | None:
        """The outputs that may stay on the GPU where the model makes them, as they can be copied from there."""
        made = {} if model.on_gpus is None else model.on_gpus.outputs
        staying: dict[str, OutputPlaceRef] = {}
        for name, place in self._places.items():
            if name in made and self._peers.reaches(made[name][3], place.contents.memory.device_id):
                staying[name] = made[name]
        return staying or None

    def respond(self, outcome: _Outcome, final: bool) -> None:
        """See execution.job.Respond."""
        placed: asyncio.Task[InferResponse | InferenceError] | _Outcome = outcome
        if isinstance(outcome, InferResponse):
            # The contents of the memory are not known by the bytes of the request: no answer is prepared for it.
            outcome = placed = _plain(outcome)
            is_copied = any(output.name in self._places for output in outcome.outputs)
            if is_copied or self._waiting:
                keep_open(outcome)  # the process that made it may end before the client has it
            if is_copied:
                placed = task = self._tasks.create_task(self._put(outcome), name="copy outputs to a GPU")
                task.add_done_callback(partial(self._on_put, outcome))
        self._waiting.append((placed, final))
        self._go_on()

    def end(self) -> None:
        """Release the memory: nothing is copied any more."""
        memory, self._memory = self._memory, []
        for each in memory:
            each.close()

    def _on_put(self, response: InferResponse, task: asyncio.Task[InferResponse | InferenceError]) -> None:
        if _has_failed(task):  # it may not have begun
            response.release()
        self._go_on()

    def _go_on(self) -> None:
        """Pass on what is complete, in order."""
        while self._waiting:
            placed, final = self._waiting[0]
            if isinstance(placed, asyncio.Task):
                if not placed.done():
                    return
                # The group of the tasks raises what is no InferenceError, and the server ends.
                failed = _has_failed(placed)
                placed = InferenceError("the server ends", Code.UNAVAILABLE) if failed else placed.result()
            self._waiting.popleft()
            if final:
                self.end()
            self._client(placed, final)

    async def _put(self, response: InferResponse) -> InferResponse | InferenceError:
        """The response, which is kept open, with its outputs in their places."""
        outputs: list[OutputTensor] = []
        copies = []
        failure: InferenceError | None = None
        for output in response.outputs:
            place = self._places.get(output.name)
            if place is not None:
                size = output.byte_size
                if size > place.byte_size:
                    failure = InferenceError(
                        f"shared memory size specified with the request for output '{output.name}' ({place.byte_size} "
                        f"bytes) should be at least {size} bytes to hold the results"
                    )
                    break
                copies.append(_write(response, output, place, self._peers))
                output = OutputTensor(output.name, output.datatype, output.shape, b"", place=place.filled(size))
            outputs.append(output)
        try:
            if failure is not None:
                for copy in copies:
                    copy.close()
                raise failure
            await wait_all(copies)
        except InferenceError as exc:
            response.release()
            return exc
        response.outputs = outputs
        return response


_Outcome = InferResponse | InferenceError | None


def _has_failed(task: asyncio.Task[InferResponse | InferenceError]) -> bool:
    """Whether a task that has ended has no result."""
    return task.cancelled() or task.exception() is not None


def _plain(response: InferResponse) -> InferResponse:
    return InferResponse(
        response.model_name,
        response.model_version,
        response.id,
        response.outputs,
        response.parameters,
        response.release,
        response.take,
        response.regions,
    )


async def _write(response: InferResponse, output: OutputTensor, place: GpuPlace, peers: GpuPeers) -> None:
    size, memory = output.byte_size, place.contents.memory
    if not size:
        return
    if isinstance(output.place, OnGpu):
        await _write_from_gpu(Tensor(output.place.memory, split(output.address)[1], size), place, peers)
        return
    number, offset = split(output.address)
    for region in response.regions:
        if region.number == number and isinstance(region, SharedRegion):
            await memory.write(place.offset, size, region, offset)
            return
    # The output is in private memory of this process.
    staged = await asyncio.to_thread(_staged, size, output.data)
    try:
        await memory.write(place.offset, size, staged, 0)
    finally:
        staged.close()


async def _write_from_gpu(output: Tensor, place: GpuPlace, peers: GpuPeers) -> None:
    """Raises InferenceError."""
    source, at, size = output
    memory = place.contents.memory
    if source.gpu.ordinal == memory.device_id:
        await source.lessor.copy(source, at, size, memory, place.offset)
    elif not await peers.put(output, memory.for_stubs(), place.offset):
        staged = await asyncio.to_thread(_staged, size)
        try:
            await source.lessor.fetch(source, at, size, staged, 0)
            await memory.write(place.offset, size, staged, 0)
        finally:
            staged.close()


def _staged(size: int, contents: bytes | memoryview = b"") -> SharedRegion:
    """A region with memory for `size` bytes, that begins with a copy of these contents. Raises InferenceError."""
    try:
        region = create_region("outputs for a GPU")
    except OutOfMemoryError as exc:
        raise InferenceError(str(exc), Code.UNAVAILABLE) from exc
    try:
        region.commit(0, size)
    except OutOfMemoryError as exc:
        region.close()
        raise InferenceError(str(exc), Code.UNAVAILABLE) from exc
    region.view[: len(contents)] = contents
    return region

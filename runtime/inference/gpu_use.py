# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The use of client memory on GPUs by one request.

Inputs are copied from there to the model's request region before the request is checked, unless the model reads them
where they are.
Outputs are copied there before the client has the response. The brokers of the GPUs copy while the event loop goes on.
They read and write the regions themselves, so nothing is copied twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

from pyruntime.runtime.execution.job import Job, Respond
from pyruntime.runtime.gpus.tensor_places import reads_of
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.memory.client_use import Reading
from pyruntime.runtime.memory.gpu_copies import bring, wait_all
from pyruntime.runtime.regions import SharedRegion, create_region
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


class GpuUse:
    """See the module. `respond` is to be called instead of the request's own, which is `client`.

    Until the last response, or `end`, the memory stays registered. Belongs to the event loop's thread.
    """

    def __init__(self, request: InferRequest, client: Respond, tasks: asyncio.TaskGroup) -> None:
        self._inputs = [(each, each.gpu) for each in request.inputs if isinstance(each.gpu, GpuContents)]
        self._left: dict[str, OnGpu] = {}
        self._places = request.gpu_places or {}
        self._client = client
        self._tasks = tasks
        self._memory = [contents.memory for _, contents in self._inputs]
        self._memory += [place.contents.memory for place in self._places.values()]
        for memory in self._memory:
            memory.count_on()
        # The responses whose outputs are being copied, and those behind them, each with whether it is the last one.
        self._waiting: deque[tuple[asyncio.Task[InferResponse | InferenceError] | _Outcome, bool]] = deque()

    async def fetch(self, request: InferRequest, model: ModelVersion) -> None:
        """Copy the inputs to main memory. Raises InferenceError; the caller frees the request then.

        Nothing is copied for a request with more inputs than the model has, which the caller is about to refuse. It
        must not be cancelled, because the brokers write to the memory of the request nevertheless.
        """
        if not self._inputs or len(request.inputs) > len(model.spec.inputs):
            return
        model.check_serving()
        self._inputs = self._leave_some(request, model)
        if not self._inputs:
            return
        region, sizes = model.memory.region, [contents.size for _, contents in self._inputs]
        copies = [partial(contents.memory.read, contents.offset, contents.size) for _, contents in self._inputs]
        model.expect()
        try:
            slot, places = await bring(model.memory, sizes, copies)
        finally:
            model.arrived()
        request.slots.append(slot)
        for (tensor, contents), at in zip(self._inputs, places, strict=True):
            tensor.offset, tensor.data = at, region.view[at : at + contents.size]

    def _leave_some(self, request: InferRequest, model: ModelVersion) -> list[tuple[InputTensor, GpuContents]]:
        """Leave inputs on the GPU which the model reads there. Returns the others."""
        others, reads = [], reads_of(model.on_gpus)
        for tensor, contents in self._inputs:
            memory, has_size = contents.memory, tensor.datatype in BY_NAME and BY_NAME[tensor.datatype].size
            is_read_there = memory.device_id == reads.get(tensor.name)
            if is_read_there and contents.size and has_size and not contents.offset % ALIGNED_BYTES:
                region = memory.for_stubs()
                tensor.offset, tensor.gpu = address(region.number, contents.offset), OnGpu(region, contents.size)
                request.slots.append(Reading([region, memory]))
                self._left[tensor.name] = tensor.gpu
            else:
                others.append((tensor, contents))
        return others

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
        """The outputs that may stay on the GPU where the model makes them, because they go to memory there."""
        made = {} if model.on_gpus is None else model.on_gpus.outputs
        staying: dict[str, OutputPlaceRef] = {}
        for name, place in self._places.items():
            if name in made and made[name][3] == place.contents.memory.device_id:
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
                copies.append(_write(response, output, place))
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


async def _write(response: InferResponse, output: OutputTensor, place: GpuPlace) -> None:
    size, memory = output.byte_size, place.contents.memory
    if not size:
        return
    if isinstance(output.place, OnGpu):
        source = output.place.memory
        await source.lessor.copy(source, split(output.address)[1], size, memory, place.offset)
        return
    number, offset = split(output.address)
    for region in response.regions:
        if region.number == number and isinstance(region, SharedRegion):
            await memory.write(place.offset, size, region, offset)
            return
    # The output is in private memory of this process.
    staged = await asyncio.to_thread(_staged, output.data)
    try:
        await memory.write(place.offset, size, staged, 0)
    finally:
        staged.close()


def _staged(contents: bytes | memoryview) -> SharedRegion:
    """A region that begins with a copy of these contents. Raises InferenceError."""
    try:
        region = create_region("outputs for a GPU")
    except OutOfMemoryError as exc:
        raise InferenceError(str(exc), Code.UNAVAILABLE) from exc
    try:
        region.commit(0, len(contents))
    except OutOfMemoryError as exc:
        region.close()
        raise InferenceError(str(exc), Code.UNAVAILABLE) from exc
    region.view[: len(contents)] = contents
    return region

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Warms an instance up: has it execute the samples of `model_warmup` before it is ready, also after a restart.

As in Triton, a sample of batch size n is one execution of n requests of one row each, which the statistics count. They
pass neither a queue nor the response cache. Names that are no inputs of the model, such as control inputs, are given to
it as they are. Instances that share a process execute a sample at the same time. An ensemble, which has no warm-up in
Triton, passes the requests through its steps.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path

from pyruntime.runtime.config.inputs import check_request
from pyruntime.runtime.config.spec import WarmupInput, WarmupSample
from pyruntime.runtime.execution import executor
from pyruntime.runtime.execution.job import Job, request_options, tensor_refs
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.loaders.model_files import path_in, read_file
from pyruntime.runtime.requests.types import InferRequest, InferResponse, InputTensor
from pyruntime.runtime.scheduling.resource_grants import ResourceGrants
from pyruntime.utils.errors import Code, InferenceError, LoadError

_LOG = logging.getLogger("pyruntime.repository")

# The folder of files with contents, in the model's folder.
WARMUP_FOLDER = "warmup"
# The largest input from a file of strings, all of which is read, in bytes.
WARMUP_FILE_BYTES_MAX = 1 << 30


class WarmUp:
    """The warm-up of the instances of one version, whose model is in `folder`.

    `grants` are those of a server with a rate limiter: a sample is executed with the resources of the instance.
    """

    def __init__(self, model: ModelVersion, folder: str, grants: ResourceGrants | None) -> None:
        self._model = model
        self._folder = folder
        self._grants = grants

    async def run(self, instance: executor.Executor, batches: executor.WarmingBatches, concurrency: int) -> None:
        """Execute all samples, one after the other; it ends when all their responses are there.

        Each is executed `concurrency` times, at once if the instance needs no resources.

        Raises LoadError for the first sample that fails. If it is cancelled, the requests that the instance has end
        with the instance.
        """
        name = self._model.spec.name
        for sample in self._model.spec.warmup:
            contents = [await asyncio.to_thread(self._read, each) for each in sample.inputs]
            for iteration in range(1, sample.count + 1):
                _LOG.debug(
                    "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                    name, instance.name, sample.name, iteration,
                )  # fmt: skip
                if self._grants is None or not self._grants.limits(instance):
                    await self._execute(sample, contents, batches, concurrency)
                    continue
                for _ in range(concurrency):
                    async with self._grants.turn(instance):
                        await self._execute(sample, contents, batches, 1)

    def _read(self, tensor: WarmupInput) -> bytes:
        """The contents of an input. Raises LoadError."""
        if not tensor.file:
            return os.urandom(tensor.size) if tensor.is_random else bytes(tensor.size)
        folder = os.path.join(self._folder, WARMUP_FOLDER)
        path = path_in(folder, tensor.file, f"input_data_file of warmup input '{tensor.name}'")
        is_text = tensor.datatype == "BYTES"
        data = read_file(path, WARMUP_FILE_BYTES_MAX if is_text else tensor.size)
        if not is_text and len(data) < tensor.size:
            raise LoadError(
                f"[request id: <id_unknown>] warmup setting expects {tensor.size} bytes, but the data provided from "
                f"{Path(path).name}only has {len(data)} bytes",
                Code.INVALID_ARG,
            )
        return data

    async def _execute(
        self, sample: WarmupSample, contents: list[bytes], batches: executor.WarmingBatches, concurrency: int
    ) -> None:
        size = sample.batch_size
        responses = _Responses(size * concurrency)
        jobs: list[Job] = []
        try:
            for _ in range(size * concurrency):
                jobs.append(await self._job(sample, contents, responses))
        except InferenceError as exc:
            for job in jobs:
                job.free()
            raise _failed(sample, [str(exc)]) from None
        except BaseException:
            for job in jobs:
                job.free()
            raise
        for begin in range(0, len(jobs), size):
            batches.warm_up(jobs[begin : begin + size])
        await responses.complete.wait()
        if responses.failures:
            raise _failed(sample, responses.failures)

    async def _job(self, sample: WarmupSample, contents: list[bytes], responses: _Responses) -> Job:
        """One request with the contents in request memory. Raises InferenceError, and LoadError for a wrong sample."""
        model = self._model
        request = InferRequest(model.spec.name)
        try:
            controls: list[InputTensor] = []
            for tensor, data in zip(sample.inputs, contents, strict=True):
                slot = model.memory.allocate(max(1, len(data)))
                request.slots.append(slot)
                await asyncio.to_thread(slot.fill, data)
                view = slot.view[: len(data)]
                placed = InputTensor(tensor.name, tensor.datatype, list(tensor.shape), view, slot.offset)
                (controls if tensor.is_control else request.inputs).append(placed)
            try:
                check_request(model.spec, request)
            except InferenceError as exc:
                raise LoadError(str(exc), exc.code) from None
        except BaseException:
            request.free()
            raise
        tensors = tensor_refs([*request.inputs, *controls])
        job = Job("", request_options(request), tensors, 1, None, request.slots, responses, time.monotonic_ns())
        job.on_free = responses.freed
        return job


def warm_up_of(model: ModelVersion, folder: str, grants: ResourceGrants | None = None) -> executor.WarmUp | None:
    """The warm-up of the instances of a version; None if it has no samples. For `grants` see WarmUp."""
    return WarmUp(model, folder, grants).run if model.spec.warmup else None


class _Responses:
    """Takes the responses to the requests of one execution, and keeps the messages of errors.

    It is `complete` when all have their last response and execute has returned, or one of them has failed: a sender may
    answer while execute runs, with the resources of its instance.
    """

    def __init__(self, count: int) -> None:
        self._left = self._executed = count
        self.failures: list[str] = []
        self.complete = asyncio.Event()

    def __call__(self, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        """See execution.job.Respond."""
        if isinstance(outcome, InferenceError):
            self.failures.append(str(outcome))
        elif outcome is not None:
            outcome.release()
        if final:
            self._left -= 1
            self._note_if_complete()

    def freed(self, job: Job) -> None:
        """See Job.on_free."""
        self._executed -= 1
        self._note_if_complete()

    def _note_if_complete(self) -> None:
        if not self._left and (self.failures or not self._executed):
            self.complete.set()


def _failed(sample: WarmupSample, failures: list[str]) -> LoadError:
    """Triton's message."""
    texts = "".join(f"{failure}; " for failure in failures)
    return LoadError(f"failed to run warmup sample '{sample.name}': {texts}", Code.INVALID_ARG)

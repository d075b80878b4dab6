# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The tensors of one request to an ensemble, by reference, and the lifetime of their memory.

A step reads a tensor where the step before has written it. The memory of a response, or of the request, is freed when
the last use of its tensors has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pyruntime.runtime.calls.tensors import HeldResponse
from pyruntime.runtime.ensembles.graph import Step
from pyruntime.runtime.ensembles.marks import SequenceMark
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.regions import ClientRegion, GrantedRegion
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.addresses import address, split


class Source:
    """Memory that tensors lie in: that of the request, or of one response. The end of the last use frees it.

    Its regions stay open until then. `batch` is the batch size of the request that made the tensors, 0 if its model
    does not batch. `mark` is what the step that wrote them has set for the steps behind it; None for the request.
    """

    __slots__ = ("_free", "_regions", "_uses", "batch", "mark")

    def __init__(
        self,
        uses: int,
        regions: Sequence[GrantedRegion],
        free: Callable[[], None],
        batch: int,
        mark: SequenceMark | None = None,
    ) -> None:
        """`free` is called at once if there are no uses."""
        self._uses = uses
        self._regions = regions
        self._free = free
        self.batch = batch
        self.mark = mark
        if not uses:
            self._regions = ()
            free()
            return
        for region in regions:
            region.count_on()

    def end_use(self, uses: int = 1) -> None:
        """One use has ended, or several."""
        self._uses -= uses
        if not self._uses:
            self._free()
            for region in self._regions:
                region.close()


class Tensor(NamedTuple):
    """One tensor. `at` is its address in `region`; or its contents, which came with the request or are in no region.

    `output` is the step's output, None for an input.
    """

    datatype: str
    shape: list[int]
    at: int | bytes
    size: int
    region: GrantedRegion | None
    source: Source
    output: OutputTensor | None


def as_output(tensor: Tensor, name: str, shape: list[int]) -> OutputTensor:
    """A tensor as an output of the ensemble."""
    datatype, _, at, size, region, _, output = tensor
    if output is not None:
        return OutputTensor(name, datatype, shape, output.data, output.address)
    if isinstance(at, bytes):
        return OutputTensor(name, datatype, shape, at)
    assert region is not None
    offset = split(at)[1]
    if isinstance(region, ClientRegion):  # the client may shrink it, so the host never maps it
        return OutputTensor(name, datatype, shape, region.read(offset, size))
    return OutputTensor(name, datatype, shape, region.view[offset : offset + size], at)


def read_inputs(job: Job, memory: RequestMemory, readers: Mapping[str, Sequence[int]], batch: int) -> dict[str, Tensor]:
    """The inputs of a job that somebody reads, by name. Their memory is freed when the readers are done with them.

    `memory` is the ensemble's.
    """
    own = memory.region
    used, uses = [], 0
    for tensor in job.tensors:
        name = tensor[0]
        if name in readers:
            used.append(tensor)
            uses += len(readers[name])
    regions: dict[int, GrantedRegion] = {}
    if job.regions:
        regions = {region.number: region for region in job.regions}
    source = Source(uses, (own, *job.regions), job.free, batch)
    base = address(own.number, 0)
    tensors = {}
    for name, datatype, shape, at, size, _, _ in used:
        region: GrantedRegion | None = None
        if not isinstance(at, bytes):
            region = regions.get(split(at)[0]) if regions else None
            if region is None:
                region, at = own, base + split(at)[1]
        # As Tensor(...) does, which costs a call.
        tensors[name] = tuple.__new__(Tensor, (datatype, shape, at, size, region, source, None))
    return tensors


def end_reads(step: Step, tensors: Mapping[str, Tensor | None]) -> None:
    """A step no longer reads its inputs, which are among these tensors. Mostly all of them have one source."""
    source, uses = None, 0
    for name in step.reads:
        tensor = tensors[name]
        if tensor is None:
            continue
        if tensor.source is not source:
            if source is not None:
                source.end_use(uses)
            source, uses = tensor.source, 0
        uses += 1
    if source is not None:
        source.end_use(uses)


class SharedOutputs:
    """The outputs of a response of which some are private memory of the host: those in `shared` are copied.

    `regions` and `release` are those of the outputs, which have their names as keys. `copied_bytes` is how much had to
    be copied.
    """

    def __init__(
        self,
        outputs: Mapping[str, OutputTensor],
        response: InferResponse,
        memory: RequestMemory,
        shared: frozenset[str],
    ) -> None:
        """The copies lie in `memory`.

        Raises InferenceError UNAVAILABLE if there is no room for them; the response is not released then.
        """
        private = [output for name, output in outputs.items() if not output.address and name in shared]
        self.outputs = dict(outputs)
        self.regions, self.release = response.regions, response.release
        self.copied_bytes = sum(len(output.data) for output in private)
        if private:
            held = HeldResponse(replace(response, outputs=private), memory)
            self.outputs.update((output.name, output) for output in held.response.outputs)
            self.regions, self.release = held.regions, held.release

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
from pyruntime.runtime.ensembles.graph import INPUTS, Plan, Step
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
        if output.name == name and output.shape is shape:
            return output
        return OutputTensor(name, datatype, shape, output.data, output.address)
    if isinstance(at, bytes):
        return OutputTensor(name, datatype, shape, at)
    assert region is not None
    offset = split(at)[1]
    if isinstance(region, ClientRegion):  # the client may shrink it, so the host never maps it
        return OutputTensor(name, datatype, shape, region.read(offset, size))
    return OutputTensor(name, datatype, shape, region.view[offset : offset + size], at)


def read_inputs(job: Job, memory: RequestMemory, plan: Plan, batch: int) -> dict[str, Tensor | None]:
    """The inputs of a job that somebody reads, None for those that it lacks. The end of their last use frees them.

    `memory` is the ensemble's, and `batch` as in Source.
    """
    own, written = memory.region, plan.written[INPUTS]
    regions: dict[int, GrantedRegion] = {}
    if job.regions:
        regions = {region.number: region for region in job.regions}
    source = Source(written.uses, (own, *job.regions), job.free, batch)
    base = address(own.number, 0)
    tensors: dict[str, Tensor | None] = {**written.absent}
    for name, datatype, shape, at, size, _, _ in job.tensors:
        if name not in tensors:
            continue
        region: GrantedRegion | None = None
        if not isinstance(at, bytes):
            region = regions.get(split(at)[0]) if regions else None
            if region is None:
                region, at = own, base + split(at)[1]
        # As Tensor(...) does, which costs a call.
        tensors[name] = tuple.__new__(Tensor, (datatype, shape, at, size, region, source, None))
    if None in tensors.values():
        end_absent(tensors, source, plan)
    return tensors


def read_outputs(response: InferResponse, source: Source, step: Step, plan: Plan) -> dict[str, Tensor | None]:
    """The outputs of a step's response that somebody reads, None for those that it lacks. `source` is the response's.

    Those that other steps read lie in memory that they can read.
    """
    written, regions = plan.written[step.index], response.regions
    names = written.names
    region: GrantedRegion | None = regions[0] if len(regions) == 1 else None
    tensors: dict[str, Tensor | None] = {**written.absent}
    for output in response.outputs:
        tensor = names.get(output.name)
        if tensor is None:
            continue
        at = output.address
        if len(regions) > 1:
            region = next((region for region in regions if region.number == split(at)[0]), None)
        # As Tensor(...) does, which costs a call.
        fields = (output.datatype, output.shape, at, len(output.data), region, source, output)
        tensors[tensor] = tuple.__new__(Tensor, fields)
    if None in tensors.values():
        end_absent(tensors, source, plan)
    return tensors


def end_absent(tensors: Mapping[str, Tensor | None], source: Source, plan: Plan) -> None:
    """Those of these tensors that are absent are not used."""
    for name, tensor in tensors.items():
        if tensor is None:
            source.end_use(len(plan.readers[name]))


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


def with_shared(response: InferResponse, names: frozenset[str], memory: RequestMemory) -> tuple[InferResponse, int]:
    """The same response, with copies of those of these outputs that lie in private memory of the host.

    The copies lie in `memory`. Returns their size, too, in bytes. Raises InferenceError UNAVAILABLE if there is no room
    for them; the response is not released then.
    """
    private = [output for output in response.outputs if not output.address and output.name in names]
    held = HeldResponse(replace(response, outputs=private), memory)
    copies = {output.name: output for output in held.response.outputs}
    outputs = [copies.get(output.name, output) for output in response.outputs]
    made = replace(response, outputs=outputs, release=held.release, regions=held.regions)
    return made, sum(len(output.data) for output in private)

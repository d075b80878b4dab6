# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The tensors of one request to an ensemble, by reference, and the lifetime of their memory.

A step reads a tensor where the step before has written it. The memory of a response, or of the request, is freed when
the last use of its tensors has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pyruntime.runtime.calls.tensors import HeldResponse
from pyruntime.runtime.ensembles.graph import INPUTS, Plan, Step
from pyruntime.runtime.ensembles.marks import SequenceMark
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.memory.gpu_peers import Moved
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.regions import ClientRegion, GpuRegion, GrantedRegion
from pyruntime.runtime.requests.types import (
    ClientContents,
    InferResponse,
    KeptOutputs,
    OnGpu,
    OutputPlace,
    OutputTensor,
)
from pyruntime.utils.addresses import address, split


class Source:
    """Memory that tensors lie in: that of the request, or of one response. The end of the last use frees it.

    Its regions stay open until then. `batch` is the batch size of the request that made the tensors, 0 if its model
    does not batch. `mark` is what the step that wrote them has set for the steps behind it; None for the request.
    `tensors` are those that somebody reads, by their names in the ensemble. Those in a client's memory, or on a GPU,
    have a place. `kept` are all outputs of the response, if other responses have the same ones. `copies` are those of
    tensors on a GPU for readers elsewhere, by the name and the reader's GPU, None for main memory: see gpu_copies.py.
    """

    __slots__ = ("_copying", "_free", "_uses", "batch", "copies", "kept", "mark", "regions", "tensors")

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
        self.regions = regions
        self._free = free
        self.batch = batch
        self.mark = mark
        self.tensors: dict[str, OutputTensor] = {}
        self.kept: KeptOutputs | None = None
        self.copies: dict[tuple[str, int | None], OutputTensor] | None = None
        self._copying: asyncio.Lock | None = None
        if not uses:
            self.regions = ()
            free()
            return
        for region in regions:
            region.count_on()

    def end_use(self, uses: int = 1) -> None:
        """One use has ended, or several."""
        self._uses -= uses
        if not self._uses:
            self._free()
            for region in self.regions:
                region.close()

    @property
    def copying(self) -> asyncio.Lock:
        """Held by who makes copies."""
        if self._copying is None:
            self._copying = asyncio.Lock()
        return self._copying

    def tensor(self, name: str, gpu: int | None) -> OutputTensor:
        """A tensor for a reader on this GPU, or in main memory: the copy that was made for it, or the tensor itself."""
        return self.tensors[name] if self.copies is None else self.copies.get((name, gpu), self.tensors[name])

    def add_copies(self, gpu: int | None, copies: Mapping[str, OutputTensor], moved: Moved) -> None:
        """Keep copies of tensors, by their names, until the last use ends. They were made for readers on `gpu`."""
        kept = self.copies = self.copies or {}
        for name, copy in copies.items():
            kept[name, gpu] = copy
            if copy.place is None:  # in main memory, because they could not be on that GPU
                kept[name, None] = copy
        self.regions = (*self.regions, moved.region)
        moved.region.count_on()
        free = self._free

        def free_all() -> None:
            moved.slot.free()
            free()

        self._free = free_all

    def region_of(self, tensor: OutputTensor) -> GrantedRegion:
        """The region that a tensor with an address lies in."""
        regions = self.regions
        if len(regions) == 1:
            return regions[0]
        number = split(tensor.address)[0]
        return next(region for region in regions if region.number == number)


def read_inputs(job: Job, memory: RequestMemory, plan: Plan, batch: int) -> tuple[dict[str, Source | None], bool]:
    """The inputs of a job that somebody reads, None for those that it lacks, and whether some of them lie on a GPU.

    The end of their last use frees them. `memory` is the ensemble's, and `batch` as in Source.
    """
    own, written = memory.region, plan.written[INPUTS]
    regions: dict[int, GrantedRegion] = {}
    if job.regions:
        regions = {region.number: region for region in job.regions}
    source = Source(written.uses, (own, *job.regions), job.free, batch)
    base = address(own.number, 0)
    known: dict[str, Source | None] = {**written.absent}
    is_on_gpu = False
    for name, datatype, shape, at, size, _, _ in job.tensors:
        if name not in known:
            continue
        known[name] = source
        if isinstance(at, bytes):
            tensor = OutputTensor(name, datatype, shape, at)
        else:
            number, offset = split(at)
            region = regions.get(number) if regions else None
            if region is None:
                tensor = OutputTensor(name, datatype, shape, own.view[offset : offset + size], base + offset)
            elif isinstance(region, ClientRegion):
                place = OutputPlace("", 0, size, ClientContents(region, at, size))
                tensor = OutputTensor(name, datatype, shape, b"", at, place)
            elif isinstance(region, GpuRegion):
                tensor = OutputTensor(name, datatype, shape, b"", at, OnGpu(region, size))
                is_on_gpu = True
            else:
                tensor = OutputTensor(name, datatype, shape, region.view[offset : offset + size], at)
        source.tensors[name] = tensor
    if None in known.values():
        end_absent(known, source, plan)
    return known, is_on_gpu


def read_outputs(response: InferResponse, source: Source, step: Step, plan: Plan) -> dict[str, Source | None]:
    """The outputs of a step's response that somebody reads, None for those that it lacks. `source` is the response's.

    Those that other steps read lie in memory that they can read.
    """
    written, outputs = plan.written[step.index], response.outputs
    tensors: dict[str, OutputTensor] | None = None
    if type(outputs) is KeptOutputs:
        source.kept = outputs
        tensors = outputs.derived.get(written)
    if tensors is None:
        names = written.names
        tensors = {names[output.name]: output for output in outputs if output.name in names}
        if source.kept is not None:
            source.kept.derive(written, tensors)
    source.tensors = tensors
    known: dict[str, Source | None] = dict.fromkeys(tensors, source)
    if len(known) < len(written.absent):
        known = {**written.absent, **known}
        end_absent(known, source, plan)
    return known


def end_absent(known: Mapping[str, Source | None], source: Source, plan: Plan) -> None:
    """Those of these tensors that are absent are not used."""
    for name, present in known.items():
        if present is None:
            source.end_use(len(plan.readers[name]))


def end_reads(step: Step, known: Mapping[str, Source | None]) -> None:
    """A step no longer reads its inputs, which are among these tensors. Mostly all of them have one source."""
    sources = list(map(known.__getitem__, step.reads))
    source = sources[0]
    if source is not None and sources.count(source) == len(sources):
        source.end_use(len(sources))
        return
    for source in sources:
        if source is not None:
            source.end_use()


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

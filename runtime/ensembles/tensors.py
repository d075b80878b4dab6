# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The tensors of one request to an ensemble, by reference, and the lifetime of their memory.

A step reads a tensor where the step before has written it. The memory of a response, or of the request, is freed when
the last use of its tensors has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pyruntime.runtime.calls.tensors import CallInputs, HeldResponse
from pyruntime.runtime.ensembles.marks import SequenceMark
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.regions import ClientRegion, GrantedRegion, SharedRegion
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.addresses import address, split


class Source:
    """Memory that tensors lie in, with so many uses left. The end of the last one frees it.

    Its regions stay open until then.
    """

    __slots__ = ("_free", "_regions", "_uses")

    def __init__(self, uses: int, regions: Sequence[GrantedRegion], free: Callable[[], None]) -> None:
        """`free` is called at once if there are no uses."""
        self._uses = uses
        self._regions = regions
        self._free = free
        if not uses:
            self._regions = ()
            free()
            return
        for region in regions:
            region.count_on()

    def end_use(self) -> None:
        """One use has ended."""
        self._uses -= 1
        if not self._uses:
            self._free()
            for region in self._regions:
                region.close()


class StepInputs(CallInputs):
    """The inputs of a step, as a slot of its job. The sources keep their regions open."""

    __slots__ = ("_sources",)

    def __init__(self, sources: list[Source]) -> None:
        self._sources = sources

    def free(self) -> None:
        """See CallInputs."""
        for source in self._sources:
            source.end_use()


class Tensor:
    """One tensor. `at` is its address in `region`; or its contents, which came with the request or are in no region.

    `batch` is the batch size of the request that made it, 0 if its model does not batch. `mark` is what the step that
    wrote it has set for the steps behind it; None for an input of the ensemble. `output` is the step's output, None for
    an input.
    """

    __slots__ = ("at", "batch", "datatype", "mark", "output", "region", "shape", "size", "source")

    def __init__(
        self,
        datatype: str,
        shape: list[int],
        at: int | bytes,
        size: int,
        region: GrantedRegion | None,
        batch: int,
        source: Source,
        mark: SequenceMark | None = None,
        output: OutputTensor | None = None,
    ) -> None:
        self.datatype = datatype
        self.shape = shape
        self.at = at
        self.size = size
        self.region = region
        self.batch = batch
        self.source = source
        self.mark = mark
        self.output = output

    def as_output(self, name: str, shape: list[int]) -> OutputTensor:
        """The tensor as an output of the ensemble."""
        if self.output is not None:
            return OutputTensor(name, self.datatype, shape, self.output.data, self.output.address)
        at, region = self.at, self.region
        if isinstance(at, bytes):
            return OutputTensor(name, self.datatype, shape, at)
        assert region is not None
        offset = split(at)[1]
        if isinstance(region, ClientRegion):  # the client may shrink it, so the host never maps it
            return OutputTensor(name, self.datatype, shape, region.read(offset, self.size))
        return OutputTensor(name, self.datatype, shape, region.view[offset : offset + self.size], at)


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
    source = Source(uses, (own, *job.regions), job.free)
    base = address(own.number, 0)
    tensors = {}
    for name, datatype, shape, at, size, _, _ in used:
        region: GrantedRegion | None = None
        if not isinstance(at, bytes):
            region = regions.get(split(at)[0]) if regions else None
            if region is None:
                region, at = own, base + split(at)[1]
        tensors[name] = Tensor(datatype, shape, at, size, region, batch, source)
    return tensors


def shared_outputs(
    response: InferResponse, memory: RequestMemory, shared: frozenset[str]
) -> tuple[InferResponse, Sequence[SharedRegion], Callable[[], None], int]:
    """A response whose outputs in `shared`, by name, lie in memory that other processes can read.

    Returns it with its regions, the function that releases it, and the number of bytes that had to be copied, from
    private memory of the host to `memory`. Raises InferenceError UNAVAILABLE if there is no room for the copy; the
    response is not released then.
    """
    private = [output for output in response.outputs if not output.address and output.name in shared]
    if not private:
        return response, response.regions, response.release, 0
    held = HeldResponse(replace(response, outputs=private), memory)
    copies = {output.name: output for output in held.response.outputs}
    made = replace(response, outputs=[copies.get(output.name, output) for output in response.outputs])
    return made, held.regions, held.release, sum(len(output.data) for output in private)

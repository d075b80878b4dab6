# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The tensors of one request to an ensemble, by reference, and the lifetime of their memory.

A step reads a tensor where the step before has written it. The memory of a response, or of the request, is freed when
the last use of its tensors has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from pyruntime.runtime.calls.tensors import HeldResponse
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.regions import ClientRegion, GrantedRegion
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.addresses import address, split
from pyruntime.utils.request_codec import MEMORY_CPU, TensorRef

# A correlation id, and the flags of a request in its sequence.
SequenceMark = tuple[int | str, int]


class Source:
    """Memory that tensors lie in, with so many uses left. The end of the last one frees it."""

    __slots__ = ("_free", "_uses")

    def __init__(self, uses: int, free: Callable[[], None]) -> None:
        """`free` is called at once if there are no uses."""
        self._uses = uses
        self._free = free
        if not uses:
            free()

    def end_use(self) -> None:
        """One use has ended."""
        self._uses -= 1
        if not self._uses:
            self._free()


class Tensor:
    """One tensor. `at` is its address in `region`; or its contents, which came with the request or are in no region.

    `batch` is the batch size of the request that made it, 0 if its model does not batch. `mark` is what the step that
    wrote it has set for the steps behind it; None for an input of the ensemble.
    """

    __slots__ = ("at", "batch", "datatype", "mark", "region", "shape", "size", "source")

    def __init__(
        self,
        datatype: str,
        shape: list[int],
        at: int | bytes | memoryview,
        size: int,
        region: GrantedRegion | None,
        batch: int,
        source: Source,
        mark: SequenceMark | None = None,
    ) -> None:
        self.datatype = datatype
        self.shape = shape
        self.at = at
        self.size = size
        self.region = region
        self.batch = batch
        self.source = source
        self.mark = mark

    def as_input(self, name: str, shape: list[int]) -> TensorRef:
        """The tensor as an input of a step, with the shape that the step's model wants."""
        at = self.at
        assert not isinstance(at, memoryview)  # an output that a step reads lies in a region
        return (name, self.datatype, shape, at, self.size, MEMORY_CPU, 0)

    def as_output(self, name: str, shape: list[int]) -> OutputTensor:
        """The tensor as an output of the ensemble."""
        at, region = self.at, self.region
        if not isinstance(at, int):
            return OutputTensor(name, self.datatype, shape, at)
        assert region is not None
        offset = split(at)[1]
        if isinstance(region, ClientRegion):  # the client may shrink it, so the host never maps it
            return OutputTensor(name, self.datatype, shape, region.read(offset, self.size))
        return OutputTensor(name, self.datatype, shape, region.view[offset : offset + self.size], at)


def read_inputs(job: Job, memory: RequestMemory, uses: Mapping[str, int], batch: int) -> dict[str, Tensor]:
    """The inputs of a job that are used, by name. Their memory is freed when their uses have ended.

    `memory` is the ensemble's, and `uses` is how often each tensor is used.
    """
    used = [tensor for tensor in job.tensors if tensor[0] in uses]
    source = Source(sum(uses[tensor[0]] for tensor in used), job.free)
    own = memory.region
    regions: dict[int, GrantedRegion] = {region.number: region for region in job.regions} if job.regions else {}
    tensors = {}
    for name, datatype, shape, at, size, _, _ in used:
        region: GrantedRegion | None = None
        if not isinstance(at, bytes):
            region = regions.get(split(at)[0])
            if region is None:
                region, at = own, address(own.number, split(at)[1])
        tensors[name] = Tensor(datatype, shape, at, size, region, batch, source)
    return tensors


class StepOutputs:
    """The outputs of one response of a step. Those that other steps read lie in memory that all of them can read.

    `copied_bytes` is how much of them lay in private memory of the host, and had to be copied.
    """

    def __init__(self, response: InferResponse, memory: RequestMemory, read: frozenset[str]) -> None:
        """`memory` is that of the step's model, and `read` are the outputs that are inputs of other steps.

        Raises InferenceError UNAVAILABLE if there is no room for the copy; the response is not released then.
        """
        outputs = {output.name: output for output in response.outputs}
        private = [output for output in response.outputs if not output.address and output.name in read]
        held = HeldResponse(replace(response, outputs=private), memory) if private else None
        if held is None:
            for region in response.regions:
                region.count_on()
        else:
            outputs |= {output.name: output for output in held.response.outputs}
        self.outputs = outputs
        self.copied_bytes = sum(len(output.data) for output in private)
        self._held = held
        self._response = response
        self._regions = {region.number: region for region in (response if held is None else held).regions}

    def tensor(self, name: str, batch: int, source: Source, mark: SequenceMark) -> Tensor:
        """One of the outputs."""
        output = self.outputs[name]
        at = output.address
        if not at:
            return Tensor(output.datatype, output.shape, output.data, len(output.data), None, batch, source, mark)
        region = self._regions[split(at)[0]]
        return Tensor(output.datatype, output.shape, at, len(output.data), region, batch, source, mark)

    def free(self) -> None:
        """No output is used any longer."""
        if self._held is not None:
            self._held.release()
            return
        self._response.release()
        for region in self._response.regions:
            region.close()

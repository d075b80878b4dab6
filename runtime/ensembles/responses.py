# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One response of an ensemble: outputs of several steps, each where its step has written it.

It ends a use of each of them when it is released.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pyruntime.runtime.config.inputs import client_shape
from pyruntime.runtime.ensembles.ensemble import Ensemble
from pyruntime.runtime.ensembles.graph import Plan, fitting
from pyruntime.runtime.ensembles.marks import mark_parameters
from pyruntime.runtime.ensembles.step_times import STEP_TIMES, StepTime, encode_step_times
from pyruntime.runtime.ensembles.tensors import Source
from pyruntime.runtime.regions import ClientRegion, GpuRegion, SharedRegion
from pyruntime.runtime.requests.types import InferResponse, KeptOutputs, OutputPlace, OutputTensor, Parameter
from pyruntime.utils.addresses import split

# Outputs, and the regions that they lie in.
_Outputs = tuple[list[OutputTensor], tuple[SharedRegion | GpuRegion, ...]]

_NO_PARAMETERS: dict[str, Parameter] = {}

_LOG = logging.getLogger("pyruntime.ensembles")


class Release:
    """The `take` and `release` of one response."""

    __slots__ = ("_pace", "_sources")

    def __init__(self, sources: list[Source], pace: Source | None) -> None:
        """`pace` is the one of `sources` that ends when the response is taken."""
        self._sources = sources
        self._pace = pace

    def take(self) -> None:
        """See InferResponse."""
        pace, self._pace = self._pace, None
        if pace is not None:
            self._sources.remove(pace)
            pace.end_use()

    def release(self) -> None:
        """See InferResponse."""
        for source in self._sources:
            source.end_use()


def make_response(
    ensemble: Ensemble[Any],
    plan: Plan,
    request_id: str,
    known: Mapping[str, Source | None],
    pace: Source | None,
    times: list[StepTime] | None,
) -> InferResponse:
    """The response with the outputs of a plan, of those tensors that are `known`: their sources, None if absent.

    A use of `pace` ends when the response is taken. `times`, if the client wants those of steps, go into the response.
    """
    names: list[str] = []
    sources: list[Source] = []
    for name in plan.outputs:
        source = known[name]
        if source is None:
            _LOG.debug("Composing models did not output tensor %s", name)
        else:
            names.append(name)
            sources.append(source)
    release = Release(sources if pace is None else [*sources, pace], pace)
    kept: KeptOutputs | None = None
    made: _Outputs | None = None
    if sources and sources.count(sources[0]) == len(sources):  # of one step, which mostly answers alike
        kept = sources[0].kept
    if kept is not None:
        # With the names, because several steps may have one model.
        key = plan, sources[0].batch, *names
        made = kept.derived.get(key)
    if made is None:
        made = _outputs(ensemble, names, sources)
        if kept is not None:
            made = KeptOutputs(made[0]), made[1]
            kept.derive(key, made)
    outputs, regions = made
    mark = None
    for source in sources:
        mark = mark or source.mark
    parameters = _NO_PARAMETERS if mark is None else mark_parameters(mark)
    if times is not None:
        parameters = parameters | {STEP_TIMES: encode_step_times(times)}
        times.clear()
    return InferResponse(
        ensemble.spec.name,
        ensemble.version,
        request_id,
        outputs,
        parameters,
        release.release,
        release.take,
        regions,
    )


def _outputs(ensemble: Ensemble[Any], names: Sequence[str], sources: Sequence[Source]) -> _Outputs:
    """These outputs, each of its source."""
    spec, is_batching = ensemble.spec, ensemble.is_batching
    outputs: list[OutputTensor] = []
    regions: dict[int, SharedRegion | GpuRegion] = {}
    for name, source in zip(names, sources, strict=True):
        tensor = source.tensors[name]
        shape = tensor.shape
        if is_batching != (source.batch > 0):
            shape = fitting(shape, source.batch, ensemble.dims[name], is_batching=is_batching)
        if ensemble.reshapes:
            shape = client_shape(spec, name, shape)
        output = _as_output(tensor, name, shape)
        outputs.append(output)
        if output.address:
            region = source.region_of(output)
            assert not isinstance(region, ClientRegion)  # by _as_output
            regions[region.number] = region
    return outputs, tuple(regions.values())


def _as_output(tensor: OutputTensor, name: str, shape: list[int]) -> OutputTensor:
    """A tensor as an output of the ensemble."""
    if isinstance(tensor.place, OutputPlace):  # the client may shrink its memory, so the host never maps it
        contents = tensor.place.contents
        data = contents.memory.read(split(contents.address)[1], contents.size)
        return OutputTensor(name, tensor.datatype, shape, data)
    if tensor.name == name and tensor.shape is shape:
        return tensor
    return OutputTensor(name, tensor.datatype, shape, tensor.data, tensor.address, tensor.place)

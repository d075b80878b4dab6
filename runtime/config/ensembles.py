# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Validates `ensemble_scheduling` of a configuration by itself, and builds its spec. (pure)

ensemble_steps.py compares it with the models of its steps. Each rule is one ConfigError, with Triton's message if
Triton has the rule; the error names the place of its cause in the configuration, for a message with the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.config.spec import EnsembleSpec, StepSpec
from pyruntime.utils.errors import ConfigError

# The parameter with the names of outputs that may be absent, between commas or spaces.
OPTIONAL_OUTPUTS = "OPTIONAL_OUTPUTS"

# A place in a configuration: names of fields and indexes of their values, such as `("ensemble_scheduling", "step", 1)`.
Place = tuple[str | int, ...]

_STEPS: Place = ("ensemble_scheduling", "step")


class EnsembleError(ConfigError):
    """An ensemble's configuration is not valid. `place` is where, () if the whole of it is to blame."""

    def __init__(self, message: str, place: Place = ()) -> None:
        super().__init__(message)
        self.place = place


def place_of_step(index: int) -> Place:
    """The place of a step, which is counted from 0."""
    return (*_STEPS, index)


def ensemble_spec(config: Config) -> EnsembleSpec | None:
    """The spec of an ensemble; None for any other model."""
    if not config.HasField("ensemble_scheduling"):
        return None
    scheduling = config.ensemble_scheduling
    steps = tuple(
        StepSpec(step.model_name, step.model_version, _sorted(step.input_map), _sorted(step.output_map))
        for step in scheduling.step
    )
    return EnsembleSpec(steps, scheduling.max_inflight_requests, frozenset(_optional_outputs(config)))


def _sorted(tensors: Mapping[str, str]) -> dict[str, str]:
    """The entries of a map, which has no order, in an order that is always the same."""
    return {name: tensors[name] for name in sorted(tensors)}


def _optional_outputs(config: Config) -> list[str]:
    if OPTIONAL_OUTPUTS not in config.parameters:
        return []
    return [name for name in re.split("[, ]+", config.parameters[OPTIONAL_OUTPUTS].string_value) if name]


def validate_ensemble(config: Config) -> None:
    """Raise EnsembleError for the first error of an ensemble, of what its own configuration shows."""
    name = config.name
    _refuse_settings_of_instances(config)
    steps = config.ensemble_scheduling.step
    if not steps:
        raise EnsembleError(f"must specify 'step' for ensemble '{name}'", ("ensemble_scheduling",))
    written: set[str] = set()
    for index, step in enumerate(steps):
        _check_step(name, index, step, written)
    _DataFlow(config).check()
    _check_warmup(config)
    outputs = {output.name for output in config.output}
    for output in _optional_outputs(config):
        if output not in outputs:
            raise EnsembleError(
                f"{OPTIONAL_OUTPUTS} of ensemble '{name}' names '{output}', which is none of its outputs",
                ("parameters",),
            )


def _refuse_settings_of_instances(config: Config) -> None:
    name = config.name
    if config.instance_group:
        raise EnsembleError(f"instance group should not be specified for ensemble '{name}'", ("instance_group", 0))
    if config.HasField("optimization"):
        raise EnsembleError(f"optimization should not be specified for ensemble '{name}'", ("optimization",))


def _check_warmup(config: Config) -> None:
    """A model gets unknown inputs of a sample as they are; no step of an ensemble would read them."""
    inputs = {tensor.name for tensor in config.input}
    for index, sample in enumerate(config.model_warmup):
        for name in sorted(sample.inputs.keys() - inputs) if sample.batch_size else ():
            raise EnsembleError(
                f"model_warmup of ensemble '{config.name}' names '{name}', which is none of its inputs",
                ("model_warmup", index),
            )


def _check_step(name: str, index: int, step: Config, written: set[str]) -> None:
    """Check the fields of a step. Adds the tensors that it writes to `written`, which has those of the steps before."""
    place = place_of_step(index)
    for field in ("model_name", "input_map", "output_map"):
        if not getattr(step, field):
            raise EnsembleError(f"must specify '{field}' in step {index} of ensemble '{name}'", place)
    for tensor in _sorted(step.output_map).values():
        if tensor in written:
            raise EnsembleError(
                f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{name}' step {index}",
                (*place, "output_map"),
            )
        written.add(tensor)


class _DataFlow:
    """The tensors of an ensemble: those that each of them is made of, and those that are made of it."""

    def __init__(self, config: Config) -> None:
        self._name = config.name
        self._inputs = [tensor.name for tensor in config.input]
        self._outputs = [tensor.name for tensor in config.output]
        # By tensor, the tensors of its step's other side. A tensor that nothing writes, or reads, has an empty one.
        self._sources: dict[str, list[str]] = {}
        self._uses: dict[str, list[str]] = {}
        # The first step that names each tensor.
        self._places: dict[str, Place] = {}
        for index, step in enumerate(config.ensemble_scheduling.step):
            self._add(place_of_step(index), _sorted(step.input_map).values(), _sorted(step.output_map).values())

    def _add(self, place: Place, read: Iterable[str], written: Iterable[str]) -> None:
        for tensor in (*read, *written):
            self._places.setdefault(tensor, place)
            self._sources.setdefault(tensor, [])
            self._uses.setdefault(tensor, [])
        for tensor in written:
            self._sources[tensor].extend(read)
            for source in read:
                self._uses[source].append(tensor)

    def check(self) -> None:
        """Raise EnsembleError unless each tensor is written and used."""
        for noun, names in (("input", self._inputs), ("output", self._outputs)):
            for index, tensor in enumerate(names):
                if tensor not in self._places:
                    raise EnsembleError(
                        f"ensemble {noun} '{tensor}' for ensemble {self._name}' is not used", (noun, index)
                    )
        ready = self._ready()
        for index, tensor in enumerate(self._outputs):
            if tensor not in ready:
                raise EnsembleError(self._not_written(tensor, ready), ("output", index))
        for tensor, place in self._places.items():
            if tensor not in self._outputs and (tensor not in ready or not self._uses[tensor]):
                raise EnsembleError(f"ensemble tensor '{tensor}' is unused in ensemble '{self._name}'", place)

    def _ready(self) -> set[str]:
        """The tensors that are there at the end of a request with all inputs."""
        ready = set(self._inputs)
        queue = list(self._inputs)
        while queue:
            for tensor in self._uses[queue.pop()]:
                if tensor not in ready and ready.issuperset(self._sources[tensor]):
                    ready.add(tensor)
                    queue.append(tensor)
        return ready

    def _not_written(self, tensor: str, ready: set[str]) -> str:
        missing = [source for source in self._sources[tensor] if source not in ready]
        because = f": at least one of its depending tensors, '{missing[0]}', is not connected" if missing else ""
        return f"output '{tensor}' for ensemble '{self._name}' is not written{because}"

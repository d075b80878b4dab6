# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend of exported JAX functions, `backend: "jax"`: model.jax by the Python package jax.

The file is what `jax.export` serializes: StableHLO, with the trees of arguments and results. XLA compiles it for each
shape that it is called with, so a batch is filled up to a power of two, and few sizes are compiled.
"""

from __future__ import annotations

import json
import os
from typing import Any, ClassVar, Dict, List, Mapping, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils

from pyruntime.backends.jax.operations import register_operations
from pyruntime.backends.jax.programs import find_device, flat_function, import_jax, load_program, use_threads
from pyruntime.backends.toolkit.batching import Arrays, BatchExecutor
from pyruntime.backends.toolkit.completion import check_tensors, complete
from pyruntime.backends.toolkit.files import find_libraries, find_model_file, kept_libraries
from pyruntime.backends.toolkit.padding import next_power_of_two, padded_call
from pyruntime.backends.toolkit.settings import Settings, TensorSpec, read_settings
from pyruntime.backends.toolkit.threads import threads_per_instance, usable_cores

FILENAME = "model.jax"
# TYPE_BF16 as Tensor.triton_dtype() has it.
_BF16 = 14


class TritonPythonModel:
    """One instance of an exported function."""

    # The stub sets it before it calls any method.
    location: ClassVar[Dict[str, str]]

    @classmethod
    def auto_complete_config(cls, auto_complete_model_config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Complete the configuration by the export. Raises LoadError."""
        complete(auto_complete_model_config.as_dict(), cls.location, _describe_file)
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the function. Raises LoadError."""
        settings = read_settings(json.loads(args["model_config"]))
        use_threads(_threads(settings))
        self._jax = import_jax(settings)
        version_dir = os.path.join(args["model_repository"], args["model_version"])
        program = load_program(self._jax, settings, find_model_file(settings, version_dir, [FILENAME]))
        check_tensors(settings, program.inputs, program.outputs)
        self._device = find_device(
            self._jax, settings, program.exported, args["model_instance_kind"], args["model_instance_device_id"]
        )
        libraries = find_libraries(settings, version_dir)
        with kept_libraries(libraries, version_dir):
            register_operations(self._jax, settings, program.exported, libraries, self._device.platform)
        self._inputs = [tensor.name for tensor in program.inputs]
        self._places = {tensor.name: place for place, tensor in enumerate(program.outputs)}
        self._call = flat_function(self._jax, program.exported)
        self._max_batch_size = settings.max_batch_size
        names = [tensor.name for tensor in settings.outputs]
        batches = settings.max_batch_size > 0
        self._batches = BatchExecutor(self._run, JaxArrays(self._jax), names, batches, settings.states)

    def execute(self, requests: List[pb_utils.InferenceRequest]) -> List[pb_utils.InferenceResponse]:
        """Execute the requests by one call of the function, if their shapes agree."""
        return self._batches.execute(requests)

    def _run(self, inputs: Dict[str, Any], names: List[str]) -> Mapping[str, Any]:
        def call(arrays: Dict[str, Any]) -> Mapping[str, Any]:
            results = self._call(self._jax.device_put([arrays[name] for name in self._inputs], self._device))
            return {name: np.asarray(results[self._places[name]]) for name in names}

        missing = [name for name in self._inputs if name not in inputs]
        if missing:
            raise ValueError(f"input '{missing[0]}' must be given: an exported function has no optional arguments")
        if self._max_batch_size == 0 or not inputs:
            return call(inputs)
        return padded_call(call, inputs, lambda rows: min(next_power_of_two(rows), self._max_batch_size))


class JaxArrays(Arrays):
    """Arrays of numpy, which those of BF16 are too, by the datatype that jax brings."""

    def __init__(self, jax: Any) -> None:
        self._jax = jax

    def read(self, tensor: pb_utils.Tensor) -> Any:
        """See Arrays."""
        return np.asarray(self._jax.numpy.from_dlpack(tensor)) if tensor.triton_dtype() == _BF16 else tensor.as_numpy()

    def write(self, name: str, array: Any) -> pb_utils.Tensor:
        """See Arrays."""
        if array.dtype == self._jax.numpy.bfloat16:
            made = self._jax.numpy.asarray(array)
            return pb_utils.Tensor.from_dlpack(name, made if made.shape else made.reshape(1))
        return super().write(name, array)


def _describe_file(settings: Settings, version_dir: str) -> Tuple[List[TensorSpec], List[TensorSpec]]:
    program = load_program(import_jax(settings), settings, find_model_file(settings, version_dir, [FILENAME]))
    return program.inputs, program.outputs


def _threads(settings: Settings) -> int:
    threads = settings.integer("NUM_THREADS", threads_per_instance(settings.instance_count, usable_cores()))
    assert threads is not None  # it has a default
    if threads < 1:
        raise settings.refused("NUM_THREADS", "at least 1")
    return threads

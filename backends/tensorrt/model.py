# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend of engines of TensorRT, `backend: "tensorrt"`: model.plan by the Python package tensorrt.

Each instance is a process with a runtime, an execution context and a stream of its own. The plugins in the libraries of
`model_operations` are registered in that process, so they conflict with those of no other model.
"""

from __future__ import annotations

import json
import os
from typing import Any, ClassVar, Dict, List, Mapping, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils

from pyruntime.backends.tensorrt.device import Device
from pyruntime.backends.tensorrt.engines import Engine, find_profile, load_engine, make_context, rows_max
from pyruntime.backends.tensorrt.options import Options, check_shape_tensors, read_options
from pyruntime.backends.toolkit.batching import Arrays, BatchExecutor
from pyruntime.backends.toolkit.completion import check_tensors, complete
from pyruntime.backends.toolkit.files import find_libraries, find_model_file, kept_libraries
from pyruntime.backends.toolkit.settings import Settings, TensorSpec, read_settings, server_options
from pyruntime.utils.dtypes import BY_CONFIG_NAME
from pyruntime.utils.errors import ConfigError

FILENAME = "model.plan"


class TritonPythonModel:
    """One instance of an engine."""

    # The stub sets it before it calls any method.
    location: ClassVar[Dict[str, str]]

    @classmethod
    def auto_complete_config(cls, auto_complete_model_config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Complete the configuration by the engine; batches are no larger than its profiles allow. Raises LoadError."""
        config = auto_complete_model_config.as_dict()
        is_open = config.get("max_batch_size", 0) == 0
        limits: List[int] = []

        def describe(settings: Settings, version_dir: str) -> Tuple[List[TensorSpec], List[TensorSpec]]:
            engine = _load(settings, version_dir, read_options(settings, server_options(cls.location)))
            limits.append(rows_max(engine.profiles) or 0)
            return engine.inputs, engine.outputs

        complete(config, cls.location, describe)
        if is_open and limits:
            config["max_batch_size"] = min(config.get("max_batch_size", 0), limits[0])
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the engine. Raises LoadError."""
        config = json.loads(args["model_config"])
        check_shape_tensors(config)
        settings = read_settings(config)
        number = int(args["model_instance_device_id"]) if args["model_instance_kind"] == "GPU" else 0
        self._device = Device(number, settings.name)
        options = read_options(settings, server_options(self.location))
        self._engine = _load(settings, os.path.join(args["model_repository"], args["model_version"]), options)
        check_tensors(settings, self._engine.inputs, self._engine.outputs)
        most = rows_max(self._engine.profiles)
        if most is not None and settings.max_batch_size > most:
            raise ConfigError(
                f"model '{settings.name}' has max_batch_size {settings.max_batch_size}, and the largest batch of the "
                f"optimization profiles of its engine is {most}"
            )
        self._context = make_context(self._engine, options)
        self._profile = 0
        self._dtypes = {each.name: np.dtype(BY_CONFIG_NAME[each.datatype].numpy) for each in self._engine.outputs}
        names = [tensor.name for tensor in settings.outputs]
        self._batches = BatchExecutor(self._run, Arrays(), names, settings.max_batch_size > 0, settings.states)

    def execute(self, requests: List[pb_utils.InferenceRequest]) -> List[pb_utils.InferenceResponse]:
        """Execute the requests by one call of the engine, if their shapes agree."""
        return self._batches.execute(requests)

    def _run(self, inputs: Dict[str, Any], names: List[str]) -> Mapping[str, Any]:
        missing = [each.name for each in self._engine.inputs if each.name not in inputs]
        if missing:
            raise ValueError(f"input '{missing[0]}' must be given: an engine has no optional inputs")
        self._device.use()
        self._use_profile(find_profile(self._engine.profiles, {name: each.shape for name, each in inputs.items()}))
        # Copies are made while this call goes on, so the arrays have to live as long.
        taken = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        for name, array in taken.items():
            self._give(name, array)
        made = {name: self._make_room(name) for name in self._dtypes}
        if not self._context.execute_async_v3(self._device.stream):
            raise ValueError("TensorRT cannot execute the batch; its log has the reason")
        for name in names:
            array, address = made[name]
            self._device.download(array, address)
        self._device.wait()
        return {name: made[name][0] for name in names}

    def _use_profile(self, profile: int) -> None:
        if profile != self._profile:
            if not self._context.set_optimization_profile_async(profile, self._device.stream):
                raise ValueError(f"TensorRT cannot change to the optimization profile {profile}")
            self._profile = profile

    def _give(self, name: str, array: Any) -> None:
        if not self._context.set_input_shape(name, tuple(array.shape)):
            raise ValueError(f"TensorRT does not accept the shape {list(array.shape)} of input '{name}'")
        if self._engine.handle.is_shape_inference_io(name):  # these are read on the host
            self._context.set_tensor_address(name, array.ctypes.data)
            return
        address = self._device.buffer(name, array.nbytes)
        self._device.upload(address, array)
        self._context.set_tensor_address(name, address)

    def _make_room(self, name: str) -> Tuple[Any, int]:
        """The array of an output, and the address of its buffer. All outputs need one, also those that none wants."""
        shape = tuple(self._context.get_tensor_shape(name))
        if any(size < 0 for size in shape):
            raise ValueError(f"the shape of output '{name}' depends on the values of inputs, which is not supported")
        array = np.empty(shape, self._dtypes[name])
        address = self._device.buffer(name, array.nbytes)
        self._context.set_tensor_address(name, address)
        return array, address


def _load(settings: Settings, version_dir: str, options: Options) -> Engine:
    path = find_model_file(settings, version_dir, [FILENAME])
    libraries = [*options.plugins, *find_libraries(settings, version_dir)]
    with kept_libraries(libraries, version_dir):
        return load_engine(settings, path, libraries, options)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend of OpenVINO models, `backend: "openvino"`: model.xml and model.onnx by the Python package openvino.

The libraries of `model_operations` are extensions of OpenVINO. Each instance is a process with a core of its own, so
they conflict with those of no other model, and end with the instance.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any, ClassVar, Dict, List, Mapping, Sequence, Tuple

import triton_python_backend_utils as pb_utils

from pyruntime.backends.openvino.models import OpenvinoArrays, describe, describe_error, describe_outputs, shape_model
from pyruntime.backends.openvino.options import check_device, read_options
from pyruntime.backends.toolkit.batching import BatchExecutor
from pyruntime.backends.toolkit.completion import check_tensors, complete
from pyruntime.backends.toolkit.files import find_libraries, find_model_file, kept_libraries, unloadable
from pyruntime.backends.toolkit.frameworks import explain_library, import_framework
from pyruntime.backends.toolkit.padding import padded_call
from pyruntime.backends.toolkit.settings import Settings, TensorSpec, read_settings
from pyruntime.backends.toolkit.threads import threads_per_instance, usable_cores
from pyruntime.backends.toolkit.weights import KeptWeights
from pyruntime.utils.errors import LoadError

FILENAMES = ["model.xml", "model.onnx"]


class TritonPythonModel:
    """One instance of an OpenVINO model."""

    # The stub sets it before it calls any method.
    location: ClassVar[Dict[str, str]]

    @classmethod
    def auto_complete_config(cls, auto_complete_model_config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Complete the configuration by the model file. Raises LoadError."""
        complete(auto_complete_model_config.as_dict(), cls.location, _describe_file)
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Compile the model. Raises LoadError."""
        settings = read_settings(json.loads(args["model_config"]))
        openvino = _import(settings)
        threads = threads_per_instance(settings.instance_count, usable_cores())
        options = read_options(settings, threads, args["model_instance_kind"], args["model_instance_device_id"])
        core = openvino.Core()
        check_device(settings, options.device, tuple(core.available_devices))
        version_dir = os.path.join(args["model_repository"], args["model_version"])
        model = _read(openvino, core, settings, version_dir, options.extensions)
        self._batch_size = shape_model(settings, options, model)
        self._pads_batches = options.pads_batches
        inputs = describe(settings.name, model.inputs, settings.all_inputs)
        places = describe_outputs(settings.name, model.outputs, settings.all_outputs)
        outputs = list(places)
        if self._batch_size > 0:  # it may have fewer rows, or refuses each request that has
            inputs, outputs = _with_any_rows(inputs), _with_any_rows(outputs)
        check_tensors(settings, inputs, outputs)
        self._inputs = {tensor.name: place for place, tensor in enumerate(inputs)}
        self._outputs = {tensor.name: place for tensor, place in places.items()}
        try:
            self._request = core.compile_model(model, options.device, options.properties).create_infer_request()
        except Exception as exc:
            raise LoadError(f"model '{settings.name}' cannot be compiled: {describe_error(exc)}") from exc
        names = [tensor.name for tensor in settings.outputs]
        batches = settings.max_batch_size > 0
        self._batches = BatchExecutor(self._run, OpenvinoArrays(), names, batches, settings.states)
        # What instances share goes with the last of them.
        self._weights = KeptWeights(settings, version_dir)

    def execute(self, requests: List[pb_utils.InferenceRequest]) -> List[pb_utils.InferenceResponse]:
        """Execute the requests by one inference of OpenVINO, if their shapes agree."""
        return self._batches.execute(requests)

    def finalize(self) -> None:
        """Give up the weights that instances share."""
        self._weights.close()

    def _run(self, inputs: Dict[str, Any], names: List[str]) -> Mapping[str, Any]:
        def call(arrays: Dict[str, Any]) -> Mapping[str, Any]:
            try:
                # The memory of the outputs is used again by the next inference, so they are copied.
                results = self._request.infer({self._inputs[name]: array for name, array in arrays.items()}, True)
            except Exception as exc:
                raise ValueError(describe_error(exc)) from exc
            return {name: results[self._outputs[name]] for name in names}

        if self._batch_size > 0:
            return padded_call(call, inputs, self._size_of)
        return call(inputs)

    def _size_of(self, rows: int) -> int:
        if rows != self._batch_size and not self._pads_batches:
            raise ValueError(
                f"the model takes batches of {self._batch_size} rows, and this one has {rows}: set the parameter "
                "ENABLE_BATCH_PADDING to YES to fill them up"
            )
        return self._batch_size


def _import(settings: Settings) -> Any:
    return import_framework("openvino", "openvino", "openvino", settings.name)


def _describe_file(settings: Settings, version_dir: str) -> Tuple[List[TensorSpec], List[TensorSpec]]:
    openvino = _import(settings)
    extension = settings.parameters.get("CPU_EXTENSION_PATH", "")
    model = _read(openvino, openvino.Core(), settings, version_dir, (extension,) if extension else ())
    return describe(settings.name, model.inputs), describe(settings.name, model.outputs)


def _read(openvino: Any, core: Any, settings: Settings, version_dir: str, extensions: Sequence[str]) -> Any:
    """The model in the file, with the model's libraries of custom operations. Raises LoadError."""
    path = find_model_file(settings, version_dir, FILENAMES)
    if os.path.isdir(path):  # as in Triton's ONNX Runtime backend, a folder has a file of its own name
        path = os.path.join(path, os.path.basename(path))
    libraries = find_libraries(replace(settings, libraries=(*extensions, *settings.libraries)), version_dir)
    with kept_libraries(libraries, version_dir):
        for library in libraries:
            try:
                core.add_extension(library)
            except Exception as exc:
                version, _, _ = openvino.__version__.partition("-")  # the build follows
                raise explain_library(settings.name, library, "openvino", version, exc) from exc
    try:
        return core.read_model(path)
    except Exception as exc:
        raise unloadable(settings.name, path, describe_error(exc)) from exc


def _with_any_rows(tensors: Sequence[TensorSpec]) -> List[TensorSpec]:
    return [replace(tensor, dims=(-1, *tensor.dims[1:])) if tensor.dims else tensor for tensor in tensors]

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend of TensorFlow models, `backend: "tensorflow"`: model.savedmodel by the Python package tensorflow.

Each instance is a process with threads and variables of its own, so the libraries of `model_operations` conflict with
those of no other model, and end with the instance.
"""

from __future__ import annotations

import json
import os
from typing import Any, ClassVar, Dict, List, Mapping, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils

from pyruntime.backends.tensorflow.process import choose_device, set_threads
from pyruntime.backends.tensorflow.signatures import TAG, choose_signature, describe, read_signatures
from pyruntime.backends.toolkit.batching import Arrays, BatchExecutor
from pyruntime.backends.toolkit.completion import check_tensors, complete
from pyruntime.backends.toolkit.files import find_libraries, find_model_file, kept_libraries, unloadable
from pyruntime.backends.toolkit.frameworks import explain_library, import_framework
from pyruntime.backends.toolkit.settings import Settings, TensorSpec, read_settings
from pyruntime.backends.toolkit.threads import threads_per_instance, usable_cores
from pyruntime.utils.errors import ConfigError

FILENAME = "model.savedmodel"
GRAPH_PLATFORM = "tensorflow_graphdef"
# TYPE_BF16 as Tensor.triton_dtype() has it.
_BF16 = 14


class TritonPythonModel:
    """One instance of a SavedModel."""

    # The stub sets it before it calls any method.
    location: ClassVar[Dict[str, str]]

    @classmethod
    def auto_complete_config(cls, auto_complete_model_config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Complete the configuration by the signature. Raises LoadError."""
        config = auto_complete_model_config.as_dict()
        _check_platform(config)
        complete(config, cls.location, _describe_file)
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the model. Raises LoadError."""
        config = json.loads(args["model_config"])
        _check_platform(config)
        settings = read_settings(config)
        version_dir = os.path.join(args["model_repository"], args["model_version"])
        tensorflow = _import(settings)
        self._tensorflow = tensorflow
        set_threads(tensorflow, settings, threads_per_instance(settings.instance_count, usable_cores()))
        choose_device(tensorflow, settings, args["model_instance_kind"], args["model_instance_device_id"])
        name, described = _read(settings, version_dir)
        inputs, outputs = describe(settings, described)
        check_tensors(settings, inputs, outputs)
        self._loaded, self._signature = _load(tensorflow, settings, version_dir, name)
        names = [tensor.name for tensor in settings.outputs]
        batches = settings.max_batch_size > 0
        self._batches = BatchExecutor(self._run, TensorFlowArrays(tensorflow), names, batches, settings.states)

    def execute(self, requests: List[pb_utils.InferenceRequest]) -> List[pb_utils.InferenceResponse]:
        """Execute the requests by one call of the signature, if their shapes agree."""
        return self._batches.execute(requests)

    def _run(self, inputs: Dict[str, Any], names: List[str]) -> Mapping[str, Any]:
        constant = self._tensorflow.constant
        try:
            returned = self._signature(**{name: constant(array) for name, array in inputs.items()})
        except self._tensorflow.errors.OpError as exc:
            raise ValueError(f"tensorflow error: {exc.message}") from exc
        return {name: np.asarray(returned[name].numpy()) for name in names}


class TensorFlowArrays(Arrays):
    """Arrays of numpy, which those of BF16 are too, by the datatype that TensorFlow brings."""

    def __init__(self, tensorflow: Any) -> None:
        self._tensorflow = tensorflow

    def read(self, tensor: pb_utils.Tensor) -> Any:
        """See Arrays."""
        if tensor.triton_dtype() != _BF16:
            return tensor.as_numpy()
        return self._tensorflow.experimental.dlpack.from_dlpack(tensor.to_dlpack()).numpy()

    def write(self, name: str, array: Any) -> pb_utils.Tensor:
        """See Arrays."""
        if array.dtype == self._tensorflow.bfloat16.as_numpy_dtype:
            made = self._tensorflow.constant(array if array.shape else array.reshape(1))
            return pb_utils.Tensor.from_dlpack(name, self._tensorflow.experimental.dlpack.to_dlpack(made))
        return super().write(name, array)


def _import(settings: Settings) -> Any:
    return import_framework("tensorflow", "tensorflow", "tensorflow", settings.name)


def _check_platform(config: Mapping[str, Any]) -> None:
    if config.get("platform") == GRAPH_PLATFORM:
        raise ConfigError(
            f"model '{config.get('name', '')}' has the platform {GRAPH_PLATFORM}, which the backend tensorflow does "
            "not serve: a GraphDef of TensorFlow 1 does not tell its inputs and outputs. Save it as a SavedModel"
        )


def _read(settings: Settings, version_dir: str) -> Tuple[str, Any]:
    """The name of the signature that is served, and its description."""
    message = import_framework("tensorflow.core.protobuf.saved_model_pb2", "tensorflow", "tensorflow", settings.name)
    folder = find_model_file(settings, version_dir, [FILENAME])
    signatures = read_signatures(message.SavedModel, settings, folder)
    name = choose_signature(settings, sorted(signatures))
    return name, signatures[name]


def _describe_file(settings: Settings, version_dir: str) -> Tuple[List[TensorSpec], List[TensorSpec]]:
    return describe(settings, _read(settings, version_dir)[1])


def _load(tensorflow: Any, settings: Settings, version_dir: str, signature: str) -> Tuple[Any, Any]:
    """The model, which keeps the variables, and the function of the signature. Raises LoadError."""
    libraries = find_libraries(settings, version_dir)
    with kept_libraries(libraries, version_dir):
        for library in libraries:
            try:
                tensorflow.load_op_library(library)
            except Exception as exc:
                raise explain_library(settings.name, library, "tensorflow", tensorflow.__version__, exc) from exc
    folder = find_model_file(settings, version_dir, [FILENAME])
    try:
        loaded = tensorflow.saved_model.load(folder, tags=[settings.parameters.get("TF_GRAPH_TAG", TAG)])
        return loaded, loaded.signatures[signature]
    except Exception as exc:
        raise unloadable(settings.name, folder, f"{type(exc).__name__}: {exc}") from exc

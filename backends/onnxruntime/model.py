# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend of ONNX models, `backend: "onnxruntime"`: model.onnx by the Python package of ONNX Runtime.

Each instance is a process with a session of its own. The libraries of `model_operations` are registered with that
session, so they conflict with those of no other model, and end with the instance.
"""

from __future__ import annotations

import json
import os
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Tuple

import triton_python_backend_utils as pb_utils

from pyruntime.backends.onnxruntime.contents import read_contents
from pyruntime.backends.onnxruntime.options import Provider, SessionSettings, providers, session_settings
from pyruntime.backends.onnxruntime.sharing import WEIGHTS, share, weight_bytes
from pyruntime.backends.onnxruntime.tensors import describe, describe_error
from pyruntime.backends.toolkit.batching import BatchExecutor
from pyruntime.backends.toolkit.completion import check_tensors, complete
from pyruntime.backends.toolkit.files import find_libraries, find_model_file, kept_libraries, unloadable
from pyruntime.backends.toolkit.frameworks import explain_library, import_framework
from pyruntime.backends.toolkit.settings import Settings, TensorSpec, read_settings
from pyruntime.backends.toolkit.shared_files import SHARED_BYTES_MIN, SharedFile
from pyruntime.backends.toolkit.texts import TextArrays
from pyruntime.backends.toolkit.threads import threads_per_instance, usable_cores
from pyruntime.backends.toolkit.weights import KeptWeights
from pyruntime.utils.errors import LoadError, PyruntimeError

FILENAME = "model.onnx"
_CPU: Provider = ("CPUExecutionProvider", {})


class TritonPythonModel:
    """One instance of an ONNX model."""

    # The stub sets it before it calls any method.
    location: ClassVar[Dict[str, str]]

    @classmethod
    def auto_complete_config(cls, auto_complete_model_config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Complete the configuration by the model file. Raises LoadError."""
        complete(auto_complete_model_config.as_dict(), cls.location, _describe_file)
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the session. Raises LoadError."""
        config = json.loads(args["model_config"])
        settings = read_settings(config)
        onnxruntime = _import(settings)
        threads = threads_per_instance(settings.instance_count, usable_cores())
        wanted = session_settings(settings, config, threads)
        self._run_options = onnxruntime.RunOptions()
        for name, value in wanted.run_entries.items():
            self._run_options.add_run_config_entry(name, value)
        used = providers(
            settings,
            config,
            args["model_instance_kind"],
            args["model_instance_device_id"],
            onnxruntime.get_available_providers(),
        )
        version_dir = os.path.join(args["model_repository"], args["model_version"])
        path = _find_file(settings, version_dir)
        # What instances share goes with the last of them; None if each has a copy of its own.
        self._shared: Optional[SharedFile] = None
        self._weights: Optional[KeptWeights] = None
        may_share = used == [_CPU] and _may_share(settings, path, wanted)
        opened = _open_shared(onnxruntime, settings, version_dir, path, wanted) if may_share else None
        if opened is None:
            options = _session_options(onnxruntime, settings, wanted)
            self._session = _open(onnxruntime, settings, version_dir, path, options, used)
        else:
            self._shared, self._session = opened
        inputs = self._session.get_inputs()
        overridable = self._session.get_overridable_initializers()
        optional = [each.name for each in overridable]
        try:
            check_tensors(
                settings,
                describe(settings.name, [*inputs, *overridable]),
                describe(settings.name, self._session.get_outputs()),
                optional,
            )
        except PyruntimeError:
            self.finalize()
            raise
        names = [tensor.name for tensor in settings.outputs]
        batches = settings.max_batch_size > 0
        self._batches = BatchExecutor(self._run, TextArrays("ONNX"), names, batches, settings.states)
        self._weights = KeptWeights(settings, version_dir)

    def execute(self, requests: List[pb_utils.InferenceRequest]) -> List[pb_utils.InferenceResponse]:
        """Execute the requests by one call of the session, if their shapes agree."""
        return self._batches.execute(requests)

    def finalize(self) -> None:
        """Give up the part in a model, or the weights, that instances share."""
        for shared in (self._shared, self._weights):
            if shared is not None:
                shared.close()

    def _run(self, inputs: Dict[str, Any], names: List[str]) -> Mapping[str, Any]:
        try:
            return dict(zip(names, self._session.run(names, inputs, self._run_options)))
        except Exception as exc:
            raise ValueError(describe_error(exc)) from exc


def _import(settings: Settings) -> Any:
    return import_framework("onnxruntime", "onnxruntime", "onnxruntime", settings.name)


def _describe_file(settings: Settings, version_dir: str) -> Tuple[List[TensorSpec], List[TensorSpec]]:
    onnxruntime = _import(settings)
    options = onnxruntime.SessionOptions()
    # Only the inputs and outputs are of interest: do not optimise, rearrange no weights, and start no threads.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.intra_op_num_threads = 1
    session = _open(onnxruntime, settings, version_dir, _find_file(settings, version_dir), options, [_CPU])
    return describe(settings.name, session.get_inputs()), describe(settings.name, session.get_outputs())


def _session_options(onnxruntime: Any, settings: Settings, wanted: SessionSettings) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = wanted.intra_op_threads
    if wanted.inter_op_threads is not None:
        options.inter_op_num_threads = wanted.inter_op_threads
    options.execution_mode = getattr(onnxruntime.ExecutionMode, wanted.execution_mode)
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, wanted.graph_level)
    if wanted.memory_arena is not None:
        options.enable_cpu_mem_arena = wanted.memory_arena
    if wanted.memory_pattern is not None:
        options.enable_mem_pattern = wanted.memory_pattern
    for name, value in wanted.entries.items():
        try:
            options.add_session_config_entry(name, value)
        except Exception as exc:
            raise LoadError(f"model '{settings.name}' has the parameter {name}: {describe_error(exc)}") from exc
    return options


def _find_file(settings: Settings, version_dir: str) -> str:
    """The path of the model file. Raises LoadError."""
    path = find_model_file(settings, version_dir, [FILENAME])
    # As in Triton, a folder has a file of its own name, and the file's external data.
    return os.path.join(path, os.path.basename(path)) if os.path.isdir(path) else path


def _may_share(settings: Settings, path: str, wanted: SessionSettings) -> bool:
    """Whether several processes would each have a copy of large weights."""
    if settings.instance_count < 2 or settings.parameters.get("INSTANCE_MODE") == "thread":
        return False
    if wanted.entries.get("session.disable_prepacking") == "1":  # they are mapped as they are
        return False
    try:
        return weight_bytes(path) >= SHARED_BYTES_MIN
    except (OSError, ValueError):  # ONNX Runtime says what is wrong with the file
        return False


def _open_shared(
    onnxruntime: Any, settings: Settings, version_dir: str, path: str, wanted: SessionSettings
) -> Optional[Tuple[SharedFile, Any]]:
    """The rearranged model that all instances share, and its session; None if that is not possible."""

    def write(made: str) -> None:
        options = _session_options(onnxruntime, settings, wanted)
        options.log_severity_level = 3  # it warns that the file is for this kind of processor
        options.optimized_model_filepath = made
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", WEIGHTS)
        options.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
        _open(onnxruntime, settings, version_dir, path, options, [_CPU])

    try:
        made_by = f"{onnxruntime.__version__} {wanted}"
        shared = share(path, find_libraries(settings, version_dir), made_by, write)
        try:
            options = _session_options(onnxruntime, settings, wanted)
            return shared, _open(onnxruntime, settings, version_dir, shared.path, options, [_CPU])
        except BaseException:
            shared.close()
            raise
    except Exception as exc:
        pb_utils.Logger.log_warn(
            f"the instances of model '{settings.name}' do not share its weights, so that each has a copy: {exc}"
        )
        return None


def _open(onnxruntime: Any, settings: Settings, version_dir: str, path: str, options: Any, used: List[Provider]) -> Any:
    """The session of a model file, with the model's libraries of custom operations. Raises LoadError."""
    libraries = find_libraries(settings, version_dir)
    with kept_libraries(libraries, version_dir):
        for library in libraries:
            try:
                options.register_custom_ops_library(library)
            except Exception as exc:
                raise explain_library(settings.name, library, "onnxruntime", onnxruntime.__version__, exc) from exc
    try:
        return onnxruntime.InferenceSession(path, options, providers=used)
    except Exception as exc:
        reason = describe_error(exc)
        lacking = _lacking_operations(path, reason, has_libraries=bool(libraries))
        if lacking:
            raise LoadError(
                f"model '{settings.name}': '{path}' has custom operations that no library registers: "
                f"{', '.join(lacking)}. Name their libraries as op_library_filename in model_operations of "
                f"config.pbtxt ({reason})"
            ) from exc
        raise unloadable(settings.name, path, reason) from exc


def _lacking_operations(path: str, reason: str, *, has_libraries: bool) -> List[str]:
    """The custom operations of a model file that did not load: those that ONNX Runtime's reason names, or all of them
    if there is no library.
    """
    try:
        custom = read_contents(path).custom
    except (OSError, ValueError):  # the reason says more
        return []
    return [each for each in custom if not has_libraries or each.rpartition("::")[2] in reason]

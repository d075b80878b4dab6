# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend of PyTorch models, `backend: "pytorch"`, by the Python package torch.

It serves TorchScript, programs of torch.export, packages of AOTInductor, and a torch.nn.Module in model.py with its
weights. Each instance is a process, so the libraries of `model_operations` conflict with those of no other model.
"""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from functools import partial
from typing import Any, ClassVar, Dict, List, Mapping, Tuple

import triton_python_backend_utils as pb_utils

from pyruntime.backends.pytorch.archives import EXPORTED, SOURCE, TORCHSCRIPT, kind_of
from pyruntime.backends.pytorch.exported import describe_exported, rows_max
from pyruntime.backends.pytorch.mapped_weights import share_weights
from pyruntime.backends.pytorch.naming import Arguments, Results
from pyruntime.backends.pytorch.options import Options, read_options
from pyruntime.backends.pytorch.programs import (
    FILENAMES,
    FILENAMES_OF_RUNTIME,
    Program,
    check_program,
    load_program,
    read_exported,
)
from pyruntime.backends.pytorch.tensors import TorchArrays, from_model, to_model
from pyruntime.backends.toolkit.batching import BatchExecutor
from pyruntime.backends.toolkit.completion import complete
from pyruntime.backends.toolkit.devices import torch_device
from pyruntime.backends.toolkit.files import find_libraries, find_model_file, kept_libraries
from pyruntime.backends.toolkit.frameworks import explain_library, import_framework, maker_of, of_another
from pyruntime.backends.toolkit.settings import Settings, TensorSpec, read_settings
from pyruntime.backends.toolkit.threads import threads_per_instance, usable_cores
from pyruntime.backends.toolkit.weights import KeptWeights
from pyruntime.utils.errors import ConfigError, LoadError


class TritonPythonModel:
    """One instance of a PyTorch model."""

    # The stub sets it before it calls any method.
    location: ClassVar[Dict[str, str]]

    @classmethod
    def auto_complete_config(cls, auto_complete_model_config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Complete the configuration of an exported program, which alone tells its tensors. Raises LoadError.

        Batches are no larger than the program allows.
        """
        config = auto_complete_model_config.as_dict()
        is_open = config.get("max_batch_size", 0) == 0
        limits: List[int] = []

        def describe(settings: Settings, version_dir: str) -> Tuple[List[TensorSpec], List[TensorSpec]]:
            program = _read_exported(settings, version_dir)
            most = rows_max(program)
            limits.extend([] if most is None else [most])
            return describe_exported(program, settings.name)

        complete(config, cls.location, describe)
        if is_open and limits:
            config["max_batch_size"] = min(config.get("max_batch_size", 0), limits[0])
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the model. Raises LoadError."""
        settings = read_settings(json.loads(args["model_config"]))
        torch = _import(settings)
        self._torch = torch
        self._options = read_options(settings, threads_per_instance(settings.instance_count, usable_cores()))
        _configure(torch, self._options)
        device = torch_device(torch, settings.name, args["model_instance_kind"], args["model_instance_device_id"])
        version_dir = os.path.join(args["model_repository"], args["model_version"])
        _load_libraries(torch, settings, version_dir)
        path = _find_file(settings, version_dir)
        self._program = load_program(torch, settings.name, path, device)
        if self._options.weight_sharing and self._program.kind in (TORCHSCRIPT, EXPORTED):
            module = self._program.module
            share_weights(torch, [*module.parameters(), *module.buffers()], path)
        most = self._program.rows_max
        if most is not None and settings.max_batch_size > most:
            raise ConfigError(
                f"model '{settings.name}' has max_batch_size {settings.max_batch_size}, and the largest batch that its "
                f"program was exported for is {most}"
            )
        self._call = self._program.call
        if self._options.compile is not None and self._program.module is not None:
            self._call = torch.compile(self._program.module, **self._options.compile)
        _check_arguments(settings, self._program)
        self._arguments = Arguments([tensor.name for tensor in settings.all_inputs], self._program.arguments)
        self._outputs = {tensor.name: tensor for tensor in settings.all_outputs}
        self._results = Results(list(self._outputs))
        names = [tensor.name for tensor in settings.outputs]
        batches = settings.max_batch_size > 0
        # For what a program makes on "cuda": threads have devices of their own.
        is_on_gpu = device is not None and device.type == "cuda"
        arrays = TorchArrays(torch, device, states_stay=is_on_gpu and settings.reads_gpu)
        self._batches = BatchExecutor(self._run, arrays, names, batches, settings.states)
        self._on_device = partial(torch.cuda.device, device) if is_on_gpu else nullcontext
        self._no_gradients = torch.inference_mode if self._options.inference_mode else torch.no_grad
        # What instances share goes with the last of them.
        self._weights = KeptWeights(settings, version_dir)

    def execute(self, requests: List[pb_utils.InferenceRequest]) -> List[pb_utils.InferenceResponse]:
        """Execute the requests by one call of the model, if their shapes agree."""
        with self._no_gradients(), self._on_device():
            responses = self._batches.execute(requests)
        if self._options.cache_cleaning and self._torch.cuda.is_available():
            self._torch.cuda.empty_cache()
        return responses

    def finalize(self) -> None:
        """Give up the weights that instances share."""
        self._weights.close()

    def _run(self, inputs: Dict[str, Any], names: List[str]) -> Mapping[str, Any]:
        taken = {name: to_model(value, name) for name, value in inputs.items()}
        if self._program.takes_dict:
            returned = self._call(taken)
        else:
            positional, named = self._arguments.arrange(taken)
            keywords = self._program.keywords
            if keywords:
                order = self._arguments.order
                named.update({name: value for name, value in zip(order, positional) if name in keywords})
                positional = [value for name, value in zip(order, positional) if name not in keywords]
            returned = self._call(*positional, **named)
        found = self._results.find(returned, names)
        return {name: from_model(value, self._outputs[name], self._torch.Tensor) for name, value in found.items()}


def _check_arguments(settings: Settings, program: Program) -> None:
    """Raise ConfigError if `forward` has no arguments for what the server adds for sequences."""
    taken = [tensor.name for tensor in settings.all_inputs]
    known = program.arguments
    if settings.added_inputs and known is not None and not program.takes_more and len(known) < len(taken):
        raise ConfigError(
            f"model '{settings.name}' has {len(taken)} inputs, with those in sequence_batching: {', '.join(taken)}; "
            f"and its forward takes {len(known)}: {', '.join(known)}"
        )


def _import(settings: Settings) -> Any:
    return import_framework("torch", "torch", "pytorch", settings.name)


def _read_exported(settings: Settings, version_dir: str) -> Any:
    """The exported program of a model. Raises LoadError, for other files as well."""
    path = _find_file(settings, version_dir)
    kind = SOURCE if path.endswith(".py") else kind_of(path)
    if kind != EXPORTED:
        if not os.path.isfile(os.path.join(version_dir, SOURCE)):
            check_program(settings.name, path, kind)
        raise LoadError(
            f"model '{settings.name}': '{path}' does not tell the datatypes and shapes of its tensors, as a "
            "program of torch.export does: declare input and output in config.pbtxt"
        )
    torch = _import(settings)
    _load_libraries(torch, settings, version_dir)
    return read_exported(torch, settings.name, path)


def _find_file(settings: Settings, version_dir: str) -> str:
    names = FILENAMES_OF_RUNTIME if settings.runtime == SOURCE else FILENAMES
    return find_model_file(settings, version_dir, names)


def _load_libraries(torch: Any, settings: Settings, version_dir: str) -> None:
    """Load the model's libraries of custom operations. Raises LoadError."""
    libraries = find_libraries(settings, version_dir)
    with kept_libraries(libraries, version_dir):
        for library in libraries:
            try:
                known = len(torch._C._dispatch_get_all_op_names())
                torch.ops.load_library(library)
            except Exception as exc:
                raise explain_library(settings.name, library, "torch", torch.__version__, exc) from exc
            maker = maker_of(library) if known == len(torch._C._dispatch_get_all_op_names()) else ""
            if maker:  # torch loads any library, and calls nothing in it
                raise LoadError(f"model '{settings.name}': {of_another(library, maker, 'torch')}")


def _configure(torch: Any, options: Options) -> None:
    torch.set_num_threads(options.threads)
    if options.interop_threads is not None:
        torch.set_num_interop_threads(options.interop_threads)
    if options.jit_executor is not None:
        torch._C._jit_set_profiling_executor(options.jit_executor)
    if options.jit_profiling is not None:
        torch._C._jit_set_profiling_mode(options.jit_profiling)
    if options.tensor_fuser is not None:
        torch._C._jit_set_texpr_fuser_enabled(options.tensor_fuser)
    if not options.cudnn:
        torch.backends.cudnn.enabled = False
    if not options.optimized_execution:
        torch._C._set_graph_executor_optimize(False)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend of models with `platform: "custom"`: each has a library of its own, compiled with include/custom.h.

A stub runs one instance in one thread, from `initialize` to `finalize`, because such libraries rely on that.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from typing import Any, ClassVar

import triton_python_backend_utils as pb_utils

from pyruntime.backends.custom import configuration
from pyruntime.backends.custom.abi import NO_GPU_DEVICE, CustomPayload
from pyruntime.backends.custom.callbacks import Callbacks
from pyruntime.backends.custom.devices import compute_capability
from pyruntime.backends.custom.library import CustomInstance, CustomLibrary, ExecuteError
from pyruntime.backends.custom.payload import Payload, failed
from pyruntime.runtime.repository.instance_mode import PARAMETER as INSTANCE_MODE
from pyruntime.runtime.repository.instance_mode import THREAD
from pyruntime.utils.errors import LoadError


class TritonPythonModel:
    """One instance of a custom library."""

    # The location of the model, with the number of its GPU: see stub/loader.py.
    location: ClassVar[dict[str, str]]

    def initialize(self, args: dict[str, str]) -> None:
        """Load the library, and create the instance. Raises LoadError."""
        config = json.loads(args["model_config"])
        _check(config)
        gpu = configuration.gpu_device_id(args)
        library = CustomLibrary(_find_library(config, args, gpu))
        self._max_batch_size: int = config["max_batch_size"]
        self._datatypes = configuration.output_datatypes(config)
        self._callbacks = Callbacks(library.version)
        self._instance = CustomInstance(
            library,
            args["model_name"],
            configuration.instance_name(config, args, self.location.get("gpu", "")),
            configuration.serialize(args["model_config"]),
            gpu,
            [version("pyruntime"), os.path.dirname(args["model_repository"])],
        )

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Execute the requests in the library, each as one payload."""
        is_batching = self._max_batch_size > 0
        payloads = [Payload(request, self._datatypes, is_batching) for request in requests]
        rows = sum(payload.batch_size for payload in payloads)
        if rows > max(1, self._max_batch_size):
            return _all_failed(
                payloads,
                f"dynamic batch size {rows} for '{self._instance.name}', max allowed is {self._max_batch_size}",
            )
        described = (CustomPayload * len(payloads))()
        for context, (payload, each) in enumerate(zip(payloads, described, strict=True), 1):
            payload.describe(each, context)
        callbacks = self._callbacks
        callbacks.payloads = payloads
        try:
            self._instance.execute(described, callbacks.get_input, callbacks.get_output)
        except ExecuteError as exc:
            return _all_failed(payloads, str(exc))
        finally:
            callbacks.payloads = ()  # a reference here would keep the requests' inputs
        return [self._response(*pair) for pair in zip(payloads, described, strict=True)]

    def finalize(self) -> None:
        """End the instance in the library."""
        problem = self._instance.close()
        if problem:
            pb_utils.Logger.log_error(problem)

    def _response(self, payload: Payload, described: CustomPayload) -> pb_utils.InferenceResponse:
        error = described.error_code
        if error and not payload.failure:
            return failed(f"payload error for '{self._instance.name}': {self._instance.describe(error)}")
        return payload.response()


def _all_failed(payloads: list[Payload], message: str) -> list[pb_utils.InferenceResponse]:
    return [failed(message) for _ in payloads]


def _check(config: dict[str, Any]) -> None:
    """Raise LoadError for settings that a custom library does not support."""
    name = config["name"]
    if config["parameters"].get(INSTANCE_MODE, {}).get("string_value") == THREAD:
        raise LoadError(f"model '{name}' has instances in threads, which those of a custom library cannot be")
    if pb_utils.using_decoupled_model_transaction_policy(config):
        raise LoadError(f"model '{name}' is decoupled, which a custom library cannot be: it answers a request once")
    if config.get("sequence_batching", {}).get("state"):
        raise LoadError(f"model '{name}' has states of sequences, for which custom.h has no function")


def _find_library(config: dict[str, Any], args: dict[str, str], gpu: int) -> str:
    has_choice = gpu != NO_GPU_DEVICE and bool(config.get("cc_model_filenames"))
    filename = configuration.library_filename(config, compute_capability(gpu) if has_choice else "")
    folder = os.path.join(args["model_repository"], args["model_version"])
    path = os.path.normpath(os.path.join(folder, filename))
    if not path.startswith(os.path.join(folder, "")) or not os.path.isfile(path):
        raise LoadError(f"unable to find Custom model '{filename}' for {args['model_name']}")
    return path

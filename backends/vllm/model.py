# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend of language models in vLLM, `backend: "vllm"`, with the interface of Triton's backend of that name.

The engine, vLLM's AsyncLLM, makes batches of all open requests; its worker processes use the GPUs. An engine that has
died does not live again, so its instance ends then, and the server starts it again.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

import triton_python_backend_utils as pb_utils

from pyruntime.backends.toolkit.frameworks import import_framework
from pyruntime.backends.toolkit.parameters import convert_parameters
from pyruntime.backends.toolkit.settings import read_settings
from pyruntime.backends.toolkit.text import TextRequest, check_text_config, complete_text_config
from pyruntime.backends.toolkit.text_streams import TextStreams
from pyruntime.backends.vllm.arguments import (
    choose_adapter,
    engine_arguments,
    read_adapters,
    read_engine_arguments,
    visible_device,
)
from pyruntime.backends.vllm.metrics import stat_logger_factory
from pyruntime.utils.errors import Code, ConfigError

REPORT_CUSTOM_METRICS = "REPORT_CUSTOM_METRICS"
LORA_NAME, STRUCTURED_OUTPUTS = "lora_name", "structured_outputs"


class TritonPythonModel:
    """One engine."""

    @classmethod
    def auto_complete_config(cls, auto_complete_model_config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Add the inputs, the outputs and the decoupled policy. Raises ValueError if the configuration contradicts."""
        complete_text_config(auto_complete_model_config)
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Start the engine. Raises LoadError, or the engine's own exception."""
        config = json.loads(args["model_config"])
        check_text_config(config, "vllm")
        settings = read_settings(config)
        self._name = name = settings.name
        version_dir = os.path.join(args["model_repository"], args["model_version"])
        arguments = read_engine_arguments(name, version_dir)
        self._adapters = read_adapters(name, version_dir, arguments)
        _choose_device(name, arguments, args["model_instance_kind"], int(args["model_instance_device_id"]))
        # After the choice of the device: vLLM reads the environment when it is imported.
        self._vllm = vllm = import_framework("vllm", "vllm", "vllm", name)
        self._sampling = import_framework("vllm.sampling_params", "vllm", "vllm", name)
        self._lora = import_framework("vllm.lora.request", "vllm", "vllm", name)
        self._dead = import_framework("vllm.v1.engine.exceptions", "vllm", "vllm", name).EngineDeadError
        self._annotations = _annotations(vllm.SamplingParams)
        made = engine_arguments(name, vllm.AsyncEngineArgs, arguments)
        loggers = []
        if settings.boolean(REPORT_CUSTOM_METRICS) and not arguments.get("disable_log_stats"):
            base = import_framework("vllm.v1.metrics.loggers", "vllm", "vllm", name).StatLoggerBase
            loggers.append(stat_logger_factory(base, {"model": args["model_name"], "version": args["model_version"]}))
        engine_class = import_framework("vllm.v1.engine.async_llm", "vllm", "vllm", name).AsyncLLM
        # The engine has imported them, if its version has them: before 0.33 such errors were ValueError.
        exceptions = sys.modules.get("vllm.exceptions")
        self._faults_of_clients = (ValueError, TypeError, getattr(exceptions, "VLLMClientError", ValueError))
        self._engine = engine_class.from_engine_args(made, stat_loggers=loggers or None)
        self._streams = TextStreams(self._generate, self._code_of)
        self._ids = itertools.count(1)
        self._open = 0

    async def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        """Answer the requests, together with those of earlier calls that are not answered yet."""
        self._open += 1
        await self._streams.answer(requests)
        self._open -= 1
        # Each open request has received its error first.
        if self._engine.errored and not self._open:
            self._end()

    def is_ready(self) -> bool:
        """Whether the engine lives. Ends the process of a dead one: a model that is not ready may get no requests."""
        if self._engine.errored and not self._open:
            self._end()
        return not self._engine.errored

    def finalize(self) -> None:
        """Stop the engine and its processes."""
        self._engine.shutdown()

    async def _generate(self, request: TextRequest) -> AsyncGenerator[Any, None]:
        adapter = choose_adapter(request.parameters.get(LORA_NAME), self._adapters)
        lora = None
        if adapter is not None and self._adapters is not None:
            number = list(self._adapters).index(adapter) + 1
            lora = self._lora.LoRARequest(str(number), number, self._adapters[adapter])
        outputs = self._engine.generate(
            _prompt(self._name, request), self._sampling_params(request), str(next(self._ids)), lora_request=lora
        )
        async with aclosing(outputs):
            async for output in outputs:
                yield output

    def _sampling_params(self, request: TextRequest) -> Any:
        given = convert_parameters(request.parameters, self._annotations)
        given.pop(LORA_NAME, None)
        if isinstance(given.get(STRUCTURED_OUTPUTS), dict):
            given[STRUCTURED_OUTPUTS] = self._sampling.StructuredOutputsParams(**given[STRUCTURED_OUTPUTS])
        kinds = self._sampling.RequestOutputKind
        given["output_kind"] = kinds.CUMULATIVE if request.stream else kinds.FINAL_ONLY
        return self._vllm.SamplingParams(**given)

    def _code_of(self, exc: Exception) -> Code | None:
        # An engine that admits no more requests says so by the status that vLLM's own server would answer.
        status = getattr(exc, "http_status", getattr(exc, "status_code", None))
        if isinstance(exc, self._dead) or status == HTTPStatus.SERVICE_UNAVAILABLE:
            return Code.UNAVAILABLE
        return Code.INVALID_ARG if isinstance(exc, self._faults_of_clients) else None

    def _end(self) -> None:
        """End this process. The server starts the instance again, and slows down if it dies again and again."""
        pb_utils.Logger.log_error(f"the vLLM engine of model '{self._name}' has died; its instance is started again")
        os._exit(1)


def _choose_device(model: str, arguments: Mapping[str, Any], kind: str, device: int) -> None:
    """Let an instance of KIND_GPU see its GPU only. Raises ConfigError with Triton's message."""
    if kind != "GPU":
        return
    if int(arguments.get("tensor_parallel_size", 1)) > 1:
        raise ConfigError(
            f"model '{model}': KIND_GPU is currently for single-GPU models, please specify KIND_MODEL in the model's "
            "'instance_group' for multi-GPU models"
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = visible_device(os.environ.get("CUDA_VISIBLE_DEVICES"), device)


def _annotations(of_class: Any) -> dict[str, Any]:
    """The parameters that clients may give: those of SamplingParams without `output_kind`, which `stream` decides."""
    known = {name: kind for name, kind in of_class.__annotations__.items() if name[0] != "_" and name != "output_kind"}
    return {**known, LORA_NAME: str}


def _prompt(model: str, request: TextRequest) -> Any:
    if not request.images:
        return request.prompt
    pillow = import_framework("PIL.Image", "pillow", "vllm", model)
    try:
        images = [pillow.open(io.BytesIO(base64.b64decode(each))).convert("RGB") for each in request.images]
    except Exception as exc:
        raise ValueError(f"input 'image' must have images in base64: {exc}") from exc
    return {"prompt": request.prompt, "multi_modal_data": {"image": images}}

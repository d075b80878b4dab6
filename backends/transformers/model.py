# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend of Hugging Face models, `backend: "transformers"`.

A model generates text with the interface of the backend vllm, or performs another task that the parameter `pipeline`
names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, ClassVar

import triton_python_backend_utils as pb_utils

from pyruntime.backends.toolkit.completion import complete
from pyruntime.backends.toolkit.devices import torch_device
from pyruntime.backends.toolkit.settings import Settings, read_settings
from pyruntime.backends.toolkit.text import check_text_config, complete_text_config
from pyruntime.backends.toolkit.threads import threads_per_instance, usable_cores
from pyruntime.backends.toolkit.weights import KeptWeights
from pyruntime.backends.transformers.generation import TextGeneration
from pyruntime.backends.transformers.loading import Loader
from pyruntime.backends.transformers.options import read_options
from pyruntime.backends.transformers.pipelines import TEXT_GENERATION, Pipeline, describe, task_of

THREADS = "INTRA_OP_THREAD_COUNT"


class TritonPythonModel:
    """One instance of a model."""

    # The stub sets it before it calls any method.
    location: ClassVar[dict[str, str]]

    @classmethod
    def auto_complete_config(cls, auto_complete_model_config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Add the inputs and outputs of the task. Raises LoadError, or ValueError if the configuration contradicts."""
        config = auto_complete_model_config.as_dict()
        if task_of(read_settings(config)) == TEXT_GENERATION:
            complete_text_config(auto_complete_model_config)
        else:
            complete(config, cls.location, describe)
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the model. Raises LoadError."""
        config = json.loads(args["model_config"])
        settings = read_settings(config)
        task = task_of(settings)
        if task == TEXT_GENERATION:
            check_text_config(config, "transformers")
        options = read_options(settings.name, os.path.join(args["model_repository"], args["model_version"]))
        loader = Loader(settings, options)
        loader.torch.set_num_threads(_threads(settings))
        device = torch_device(
            loader.torch, settings.name, args["model_instance_kind"], args["model_instance_device_id"]
        )
        self._served: TextGeneration | Pipeline
        if task == TEXT_GENERATION:
            self._served = TextGeneration(settings, options, loader, device)
        else:
            self._served = Pipeline(task, settings, loader, device)
        # What instances share goes with the last of them. Files of a hub's cache are never written to again.
        self._weights = KeptWeights(settings, options.model) if options.is_local else None

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> Any:
        """Execute the requests: a list of responses, or for text a coroutine that answers by response senders."""
        return self._served.execute(requests)

    def finalize(self) -> None:
        """Free what the model has."""
        self._served.close()
        if self._weights is not None:
            self._weights.close()


def _threads(settings: Settings) -> int:
    threads = settings.integer(THREADS, threads_per_instance(settings.instance_count, usable_cores()))
    assert threads is not None  # it has a default
    if threads < 1:
        raise settings.refused(THREADS, "at least 1")
    return threads

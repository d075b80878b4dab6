# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Performs the tasks whose result is no stream of tokens, by pipelines of transformers.

A row of the input is a text. All texts of a batch are one call of the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from pyruntime.backends.toolkit.batching import Arrays, BatchExecutor
from pyruntime.backends.toolkit.completion import check_tensors
from pyruntime.backends.toolkit.settings import Settings, TensorSpec
from pyruntime.backends.transformers.loading import Loader
from pyruntime.backends.transformers.options import read_options
from pyruntime.utils.errors import ConfigError

PIPELINE, ARGUMENTS = "pipeline", "pipeline_arguments"
TEXT_GENERATION = "text-generation"
_CLASSIFICATION, _FEATURES = "text-classification", "feature-extraction"
# The tasks of this module with the automatic class of their models.
_CLASSES = {
    _CLASSIFICATION: "AutoModelForSequenceClassification",
    _FEATURES: "AutoModel",
    "token-classification": "AutoModelForTokenClassification",
    "fill-mask": "AutoModelForMaskedLM",
}


def task_of(settings: Settings) -> str:
    """The task in the parameter `pipeline`, by default that of language models. Raises ConfigError."""
    task = settings.parameters.get(PIPELINE, TEXT_GENERATION)
    if task != TEXT_GENERATION and task not in _CLASSES:
        raise settings.refused(PIPELINE, f"one of {', '.join([TEXT_GENERATION, *_CLASSES])}")
    return task


def describe(settings: Settings, version_dir: str) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """The input and the outputs of a task, by the model's configuration. Raises LoadError."""
    config = Loader(settings, read_options(settings.name, version_dir)).config()
    return _inputs(), _outputs(task_of(settings), config)


class Pipeline:
    """One model for a task."""

    def __init__(self, task: str, settings: Settings, loader: Loader, device: Any) -> None:
        """Load the model. Raises LoadError."""
        self._task = task
        self._torch = loader.torch
        self._arguments = _arguments(settings)
        self._tokenizer = loader.tokenizer()
        self._model = loader.model(_CLASSES[task], device)
        outputs = _outputs(task, self._model.config)
        check_tensors(settings, _inputs(), outputs)
        if task != _FEATURES:
            # Without a device the pipeline would move the model to a GPU, if there is one.
            self._pipeline = loader.transformers.pipeline(
                task, model=self._model, tokenizer=self._tokenizer, device=self._model.device
            )
        self._batches = BatchExecutor(self._run, Arrays(), [each.name for each in outputs], settings.max_batch_size > 0)

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Perform the task for all texts of the requests in one call."""
        return self._batches.execute(requests)

    def close(self) -> None:
        """Nothing is to be closed."""

    def _run(self, inputs: dict[str, Any], names: list[str]) -> Mapping[str, Any]:
        texts = [_decoded(each) for each in inputs["text_input"].ravel()]
        if self._task == _FEATURES:
            return {"embedding": self._embed(texts)}
        results = self._pipeline(texts, batch_size=len(texts), **self._arguments)
        if len(texts) == 1 and (not results or isinstance(results[0], dict)):
            results = [results]  # some pipelines make no list for a single text
        if self._task != _CLASSIFICATION:
            return {"result": np.array([[json.dumps(_plain(each)).encode()] for each in results], np.object_)}
        return {
            "label": np.array([[each["label"].encode() for each in row] for row in results], np.object_),
            "score": np.array([[each["score"] for each in row] for row in results], np.float32),
        }

    def _embed(self, texts: list[str]) -> Any:
        """The mean of the last hidden states of each text's tokens, [texts, hidden]."""
        with self._torch.inference_mode():
            tokens = self._tokenizer(texts, padding=True, truncation=True, return_tensors="pt").to(self._model.device)
            states = self._model(**tokens).last_hidden_state.float()
            weights = tokens["attention_mask"][..., None]
            means = (states * weights).sum(1) / weights.sum(1).clamp(min=1)
        return means.cpu().numpy()


def _inputs() -> list[TensorSpec]:
    return [TensorSpec("text_input", "TYPE_STRING", (-1, 1))]


def _outputs(task: str, config: Any) -> list[TensorSpec]:
    if task == _CLASSIFICATION:
        labels = (-1, config.num_labels)
        return [TensorSpec("label", "TYPE_STRING", labels), TensorSpec("score", "TYPE_FP32", labels)]
    if task == _FEATURES:
        return [TensorSpec("embedding", "TYPE_FP32", (-1, config.hidden_size))]
    return [TensorSpec("result", "TYPE_STRING", (-1, 1))]


def _arguments(settings: Settings) -> dict[str, Any]:
    """The arguments of each call of the pipeline. All labels of a classification, the most likely one first."""
    text = settings.parameters.get(ARGUMENTS, "{}")
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise settings.refused(ARGUMENTS, "a JSON object with arguments of the pipeline")
    task = task_of(settings)
    if arguments and task == _FEATURES:
        raise ConfigError(f"model '{settings.name}' has the parameter {ARGUMENTS}, which {_FEATURES} does not have")
    return {**arguments, "top_k": None} if task == _CLASSIFICATION else arguments


def _decoded(value: Any) -> str:
    try:
        text: str = value.decode()
        return text
    except UnicodeDecodeError:
        raise ValueError("input 'text_input' is not valid UTF-8") from None


def _plain(value: Any) -> Any:
    """A result with numbers of Python in place of numpy's."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value

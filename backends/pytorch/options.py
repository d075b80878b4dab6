# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the parameters of PyTorch models: the names of Triton's backend in C++ and of its backend in Python. (pure)"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, Optional

from pyruntime.backends.toolkit.settings import Settings


@dataclass(frozen=True)
class Options:
    """`compile` are the arguments of torch.compile, None if the model is not compiled; None leaves a default."""

    threads: int
    interop_threads: Optional[int]
    inference_mode: bool
    optimized_execution: bool
    jit_profiling: Optional[bool]
    jit_executor: Optional[bool]
    tensor_fuser: Optional[bool]
    cudnn: bool
    cache_cleaning: bool
    weight_sharing: bool
    compile: Optional[Dict[str, Any]]


def read_options(settings: Settings, threads: int) -> Options:
    """The options of an instance, which gets `threads` unless a parameter says otherwise. Raises ConfigError."""
    return Options(
        threads=_first(settings, "INTRA_OP_THREAD_COUNT", "NUM_THREADS") or threads,
        interop_threads=_first(settings, "INTER_OP_THREAD_COUNT", "NUM_INTEROP_THREADS"),
        inference_mode=settings.boolean("INFERENCE_MODE", True),
        optimized_execution=not settings.boolean("DISABLE_OPTIMIZED_EXECUTION"),
        jit_profiling=_flag(settings, "ENABLE_JIT_PROFILING"),
        jit_executor=_flag(settings, "ENABLE_JIT_EXECUTOR"),
        tensor_fuser=_flag(settings, "ENABLE_TENSOR_FUSER"),
        cudnn=not settings.boolean("DISABLE_CUDNN"),
        cache_cleaning=settings.boolean("ENABLE_CACHE_CLEANING"),
        weight_sharing=settings.boolean("ENABLE_WEIGHT_SHARING"),
        compile=_compile_arguments(settings),
    )


def _first(settings: Settings, *parameters: str) -> Optional[int]:
    for parameter in parameters:
        value = settings.integer(parameter)
        if value is not None:
            if value < 1:
                raise settings.refused(parameter, "at least 1")
            return value
    return None


def _flag(settings: Settings, parameter: str) -> Optional[bool]:
    return settings.boolean(parameter) if parameter in settings.parameters else None


def _compile_arguments(settings: Settings) -> Optional[Dict[str, Any]]:
    name = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
    text = settings.parameters.get(name)
    if text is None:
        return None
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise settings.refused(name, "a JSON object with arguments of torch.compile")
    return None if arguments.get("disable") is True else arguments

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Stands in for the package vllm: the part of its interface that the backend uses, as in vLLM 0.33.

The engine answers with the words of the prompt, again and again. A prompt that begins with "wait" gets its first word
and then none until `AsyncLLM.go` is called; one that begins with "die" kills the engine, and one that
begins with "full" is refused. tests/stand_ins/vllm.json has the interface as the source of vLLM has it.
"""

from dataclasses import dataclass

from .sampling_params import SamplingParams as SamplingParams

__version__ = "0.33.0"


@dataclass
class AsyncEngineArgs:
    model: str = "facebook/opt-125m"
    max_model_len: int = 100
    gpu_memory_utilization: float = 0.9
    enable_lora: bool = False
    tensor_parallel_size: int = 1
    disable_log_stats: bool = False
    enable_log_requests: bool = False

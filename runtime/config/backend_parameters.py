# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the parameters of a configuration that nothing reads. (pure)

Code of a user may read any parameter of its model. Models of our own backends, and ensembles, have no such code: a
parameter that is not in PARAMETERS changes nothing there, which the log of a load says. As in Triton it is no error.
"""

from __future__ import annotations

from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.suggestions import NAME_CHARS_MAX, similar

# What the server itself reads for every model that queues requests.
_OF_ALL = frozenset({"CACHE_STREAMS", "SEQUENCE_BACKLOG_MAX_SIZE", "SEQUENCE_BACKLOG_TIMEOUT_MICROSECONDS"})
# Those of models in stubs. `unsupported` warns of a batching strategy.
_OF_STUBS = _OF_ALL | {
    "EXECUTION_ENV_PATH",
    "EXECUTION_TIMEOUT_MS",
    "FORCE_CPU_ONLY_INPUT_TENSORS",
    "INSTANCE_MODE",
    "TRITON_BATCH_STRATEGY_PATH",
    "VISIBLE_GPUS",
}
# The parameters that the backends read, in their modules `options` or where they are used.
_OF_BACKENDS: dict[str, set[str]] = {
    "jax": {"FFI_TARGETS", "NUM_THREADS"},
    "onnxruntime": {
        "arena_extend_strategy",
        "cudnn_conv_algo_search",
        "cudnn_conv_use_max_workspace",
        "do_copy_in_default_stream",
        "enable_mem_arena",
        "enable_mem_pattern",
        "execution_mode",
        "gpu_mem_limit",
        "inter_op_thread_count",
        "intra_op_thread_count",
    },
    "openvino": {
        "COMPILATION_NUM_THREADS",
        "CPU_EXTENSION_PATH",
        "ENABLE_BATCH_PADDING",
        "HINT_BF16",
        "INFERENCE_NUM_THREADS",
        "NUM_STREAMS",
        "RESHAPE_IO_LAYERS",
        "SKIP_OV_DYNAMIC_BATCHSIZE",
        "TARGET_DEVICE",
    },
    "pytorch": {
        "DISABLE_CUDNN",
        "DISABLE_OPTIMIZED_EXECUTION",
        "ENABLE_CACHE_CLEANING",
        "ENABLE_JIT_EXECUTOR",
        "ENABLE_JIT_PROFILING",
        "ENABLE_TENSOR_FUSER",
        "ENABLE_WEIGHT_SHARING",
        "INFERENCE_MODE",
        "INTER_OP_THREAD_COUNT",
        "INTRA_OP_THREAD_COUNT",
        "NUM_INTEROP_THREADS",
        "NUM_THREADS",
        "TORCH_COMPILE_OPTIONAL_PARAMETERS",
    },
    "sklearn": {"ALLOW_PICKLE", "TRUSTED_TYPES", "predict_proba"},
    "tensorflow": {
        "TF_GRAPH_TAG",
        "TF_NUM_INTER_THREADS",
        "TF_NUM_INTRA_THREADS",
        "TF_SIGNATURE_DEF",
        "TF_USE_PER_SESSION_THREADS",
    },
    "tensorrt": {"execution_context_allocation_strategy"},
    "transformers": {"ALLOW_PICKLE", "INTRA_OP_THREAD_COUNT", "pipeline", "pipeline_arguments"},
    "vllm": {"REPORT_CUSTOM_METRICS"},
}
PARAMETERS: dict[str, frozenset[str]] = {name: _OF_STUBS | read for name, read in _OF_BACKENDS.items()}
PARAMETERS["ensemble"] = _OF_ALL | {"OPTIONAL_OUTPUTS", "TRITON_BATCH_STRATEGY_PATH"}
# Beginnings of names: entries of the configuration of a session of ONNX Runtime, which checks them itself.
_BEGINNINGS = {"onnxruntime": ("session.", "optimization.", "ep.", "memory.")}
# A line of the log is for reading: of more parameters it gives the number.
NAMED_MAX = 8


def unread_parameters(config: Config, backend: str) -> list[str]:
    """A sentence for the log about the parameters of `config` that nothing reads, or none.

    For `backend` see find_unused in backend_fields.
    """
    known = PARAMETERS.get(backend)
    if known is None:
        return []
    beginnings = _BEGINNINGS.get(backend, ())
    unread = [name for name in sorted(config.parameters) if name not in known and not name.startswith(beginnings)]
    if not unread:
        return []
    named = ", ".join(f"'{name[:NAME_CHARS_MAX]}'{_question(name, known)}" for name in unread[:NAMED_MAX])
    more = f", and {len(unread) - NAMED_MAX} more" if len(unread) > NAMED_MAX else ""
    return [
        f"model '{config.name}' has parameters that nothing reads, as models of the backend '{backend}' have no such: "
        f"{named}{more}"
    ]


def _question(name: str, known: frozenset[str]) -> str:
    """` (did you mean 'X'?)` if a known name is similar, whatever its case, or ""."""
    by_lower = {each.lower(): each for each in sorted(known)}
    near = [f"'{by_lower[each]}'" for each in similar(name.lower(), by_lower)]
    return f" (did you mean {' or '.join(near)}?)" if near else ""

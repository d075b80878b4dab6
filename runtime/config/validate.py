# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Validates a normalised configuration. (pure)

Each rule is one ConfigError, with Triton's message if Triton has the rule. `unsupported` has the features that this
server lacks; the modules that read a file check it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyruntime.runtime.config.backends import BACKEND_BY_PLATFORM
from pyruntime.runtime.config.batch_tensors import validate_batch_tensors
from pyruntime.runtime.config.ensembles import validate_ensemble
from pyruntime.runtime.config.normalize import ENSEMBLE_PLATFORM
from pyruntime.runtime.config.rate_limits import check_rate_limiter
from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.config.sequences import validate_completed, validate_sequence_batching
from pyruntime.runtime.config.warmup import validate_warmup
from pyruntime.utils.dtypes import BY_NUMBER
from pyruntime.utils.errors import ConfigError

# Each instance is a process; a thousand of them is a misplaced digit.
INSTANCES_MAX = 1024

# FORMAT_NHWC and FORMAT_NCHW are without the dimension of the batch.
IMAGE_DIMS = 3
TENSORRT_PLATFORM = "tensorrt_plan"

# The parameter with which a decoupled model may have a response cache.
CACHE_STREAMS = "CACHE_STREAMS"

# The name of a stub is its process title, which users see and copy in shells.
INVALID_NAME_CHARACTERS = frozenset(";|&$`<>()[]{}\\\"'*?~#!")


def validate_instances(config: Config) -> None:
    """Check what must be valid before a stub starts, and therefore before auto_complete_config has run.

    Raises ConfigError if `config`, normalised, names no backend, or instances that are not possible.
    """
    _check_backend(config)
    if config.platform != ENSEMBLE_PLATFORM:
        _check_instance_groups(config)
    validate_sequence_batching(config)


def validate_devices(config: Config, gpus: Sequence[int], capability_min: float = 6.0) -> None:
    """Check the devices of instances before a stub starts. Raises ConfigError if this host lacks one of them.

    `gpus` are those with at least the compute capability `capability_min`.

    It is apart from `validate_instances` because, as in Triton, this error belongs to each version of the model, and
    the errors of `validate_instances` to the model as a whole.
    """
    for group in config.instance_group:
        _check_gpus(f"instance group {group.name} of model {config.name}", group, gpus, capability_min)


def validate(config: Config, gpus: Sequence[int], capability_min: float = 6.0) -> None:
    """Raise ConfigError for the first error in `config`, normalised and complete. For `gpus` see validate_devices."""
    validate_instances(config)
    validate_devices(config, gpus, capability_min)
    _check_tensors(config)
    _check_images(config)
    _check_for_tensorrt(config)
    validate_batch_tensors(config)
    _check_max_batch_size(config)
    if config.HasField("dynamic_batching"):
        _check_dynamic_batching(config)
    validate_completed(config)
    if config.platform == ENSEMBLE_PLATFORM:
        validate_ensemble(config)
    validate_warmup(config)
    _check_response_cache(config)


def _check_backend(config: Config) -> None:
    name, platform, backend = config.name, config.platform, config.backend
    if platform == ENSEMBLE_PLATFORM and backend:
        raise ConfigError(f"Ensemble model '{name}' must have platform type 'ensemble' and empty backend type")
    if platform == ENSEMBLE_PLATFORM and not config.HasField("ensemble_scheduling"):
        raise ConfigError(f"ensemble scheduling must be set for ensemble '{name}' whose platform is ensemble")
    if platform != ENSEMBLE_PLATFORM and config.HasField("ensemble_scheduling"):
        raise ConfigError(f"ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble")
    is_pair = BACKEND_BY_PLATFORM.get(platform, backend) == backend and (platform or backend != "tensorflow")
    if backend and not is_pair:
        raise ConfigError(f"unexpected 'platform' and 'backend' pair, got:{platform}, {backend}")
    if not backend and platform and platform != ENSEMBLE_PLATFORM:
        raise ConfigError(f"unexpected platform type '{platform}' for {name}")
    if not backend and not platform:
        raise ConfigError(
            f"must specify 'backend' for {name}: its configuration names none, and its default_model_filename "
            f"'{config.default_model_filename}' does not say which one it is"
        )
    filename = config.default_model_filename
    if backend == "python" and not filename.endswith(".py"):
        raise ConfigError(f"Model name must end with '.py'. Model name is \"{filename}\".")


def _check_tensors(config: Config) -> None:
    for noun, tensors in (("input", config.input), ("output", config.output)):
        seen: set[str] = set()
        for tensor in tensors:
            if not tensor.name:
                raise ConfigError(f"model {noun} must specify 'name'")
            # As in Triton, an output may be there twice, and the first one counts: `unsupported` says so.
            if tensor.name in seen and noun == "input":
                raise ConfigError(f"model '{config.name}' has more than one {noun} named '{tensor.name}'")
            seen.add(tensor.name)
            _check_tensor(f"model {noun} '{tensor.name}'", tensor, config.max_batch_size)


def _check_tensor(subject: str, tensor: Config, max_batch_size: int) -> None:
    if tensor.data_type == 0:
        raise ConfigError(f"{subject} must specify 'data_type'")
    if tensor.data_type not in BY_NUMBER:
        raise ConfigError(f"{subject} has an unknown 'data_type', {tensor.data_type}")
    dims = list(tensor.dims)
    # Empty dims mean a scalar. Triton refuses them: see docs/explanation/decisions/0008-an-empty-dims-is-a-scalar.md.
    _check_dims(subject, "dimension", dims)
    if tensor.HasField("reshape"):
        _check_reshape(subject, dims, list(tensor.reshape.shape), max_batch_size)


def _check_images(config: Config) -> None:
    for tensor in config.input:
        if tensor.format and len(tensor.dims) != IMAGE_DIMS:
            raise ConfigError(f"model input NHWC/NCHW require {IMAGE_DIMS} dims for {config.name}")


def _check_for_tensorrt(config: Config) -> None:
    """Refuse what only engines of TensorRT have."""
    if config.platform == TENSORRT_PLATFORM:
        return
    for tensor in (*config.input, *config.output):
        if tensor.is_shape_tensor:
            raise ConfigError(f"shape tensors are only supported for TensorRT platform for {config.name}")
        if tensor.is_non_linear_format_io:
            raise ConfigError(f"Non-linear IO format is only supported for the TensorRT platform for {config.name}")
    for group in config.instance_group:
        if group.profile:
            raise ConfigError(
                f"instance group {group.name} of model {config.name} and platform {config.platform}specifies profile "
                "field which is only supported for TensorRT models"
            )


def _check_reshape(subject: str, dims: list[int], reshape: list[int], max_batch_size: int) -> None:
    _check_dims(subject, "reshape dimension", reshape)
    if not reshape and max_batch_size == 0:
        raise ConfigError(
            f"{subject} cannot have empty reshape for non-batching model as scalar tensors are not supported"
        )
    if dims.count(-1) != reshape.count(-1):
        raise ConfigError(f"{subject} has different number of variable-size dimensions for dims and reshape")
    if _fixed_counts(dims) != _fixed_counts(reshape):
        raise ConfigError(f"{subject} has different size for dims and reshape")


def _check_dims(subject: str, noun: str, dims: list[int]) -> None:
    for dim in dims:
        if dim < 1 and dim != -1:
            raise ConfigError(
                f"{subject} {noun} must be integer >= 1, or -1 to indicate a variable-size dimension, got {dim}"
            )


def _fixed_counts(dims: list[int]) -> list[int]:
    """The element counts of the runs of fixed dimensions before, between and after the variable ones."""
    ends = [index for index, dim in enumerate(dims) if dim == -1]
    starts = [0, *(end + 1 for end in ends)]
    return [math.prod(dims[start:end]) for start, end in zip(starts, [*ends, len(dims)], strict=True)]


def _check_max_batch_size(config: Config) -> None:
    if config.max_batch_size < 0:
        raise ConfigError(f"'max_batch_size' must be non-negative value for {config.name}")


def _check_dynamic_batching(config: Config) -> None:
    name, batching = config.name, config.dynamic_batching
    for size in batching.preferred_batch_size:
        if size < 1:
            raise ConfigError(f"dynamic batching preferred size must be positive for {name}, got {size}")
        if size > config.max_batch_size:
            raise ConfigError(
                f"dynamic batching preferred size must be <= max batch size for {name}, "
                f"got {size} with max_batch_size {config.max_batch_size}"
            )
    levels = batching.priority_levels
    if levels > 0 and not 1 <= batching.default_priority_level <= levels:
        raise ConfigError(
            f"default priority level must be in range [1, {levels}] for {name}, got {batching.default_priority_level}"
        )
    for level in sorted(batching.priority_queue_policy):
        if levels > 0 and not 1 <= level <= levels:
            raise ConfigError(
                f"priority queue policy must have priority level in range [1, {levels}] for {name}, got {level}"
            )
    if batching.preserve_ordering:
        if levels > 1:
            raise ConfigError(f"Only one priority level is allowed when 'preserve_ordering' is true for {name}")
        policies = [batching.default_queue_policy, *batching.priority_queue_policy.values()]
        if any(policy.timeout_action == policy.DELAY and policy.default_timeout_microseconds for policy in policies):
            raise ConfigError(
                f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {name}"
            )


def _check_response_cache(config: Config) -> None:
    if not config.response_cache.enable:
        return
    refusal = f"Response Cache does not currently support model {config.name}"
    if config.HasField("sequence_batching"):
        raise ConfigError(f"{refusal} with sequence batching scheduler. Please disable the response cache.")
    if config.model_transaction_policy.decoupled and not _caches_streams(config):
        raise ConfigError(f"{refusal} with 'decoupled' transaction policy. Please disable the response cache.")


def _caches_streams(config: Config) -> bool:
    """Whether the model wants whole streams to be cached, which Triton cannot."""
    text = config.parameters[CACHE_STREAMS].string_value if CACHE_STREAMS in config.parameters else "false"
    if text not in ("true", "false"):
        raise ConfigError(
            f"the parameter {CACHE_STREAMS} of model '{config.name}' must be 'true' or 'false', and is '{text}'"
        )
    return text == "true"


def _check_instance_groups(config: Config) -> None:
    _check_stub_name(config.name)
    instances = 0
    for group in config.instance_group:
        _check_stub_name(group.name)
        if group.kind not in group.Kind.values():
            raise ConfigError(f"instance group {group.name} of model {config.name} has an unknown kind, {group.kind}")
        check_rate_limiter(config.name, group.rate_limiter)
        instances += group.count * max(len(group.gpus), 1)
    if instances > INSTANCES_MAX:
        raise ConfigError(f"model {config.name} has {instances} instances, and at most {INSTANCES_MAX} are allowed")


def _check_stub_name(name: str) -> None:
    if not INVALID_NAME_CHARACTERS.isdisjoint(name) or not name.isprintable():
        raise ConfigError("Invalid stub name: contains invalid characters")


def _check_gpus(subject: str, group: Config, gpus: Sequence[int], capability_min: float) -> None:
    if group.kind in (group.KIND_CPU, group.KIND_MODEL) and group.gpus:
        raise ConfigError(f"{subject} has kind {group.Kind.Name(group.kind)} but specifies one or more GPUs")
    if group.kind != group.KIND_GPU:
        return
    if not group.gpus:
        raise ConfigError(f"{subject} has kind KIND_GPU but no GPUs are available")
    for gpu in group.gpus:
        if gpu not in gpus:
            raise ConfigError(
                f"{subject} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required "
                f"CUDA compute compatibility of {capability_min:f} are: {', '.join(map(str, gpus))}"
            )

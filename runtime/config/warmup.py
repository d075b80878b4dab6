# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The samples of `model_warmup`: requests that each instance executes before it is ready. (pure)"""

from __future__ import annotations

from math import prod

from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.config.spec import WarmupInput, WarmupSample
from pyruntime.utils.dtypes import BY_NUMBER, BYTES_PREFIX_SIZE
from pyruntime.utils.errors import ConfigError

# The requests of a sample, which wait together for the instance; and the bytes of one of its inputs.
WARMUP_REQUESTS_MAX = 65536
WARMUP_BYTES_MAX = 1 << 31
# How often a sample is executed. A load holds one of --model-load-thread-count while it warms up.
WARMUP_COUNT_MAX = 100_000

_TRITON_INVALID = "[request id: <id_unknown>] warmup setting expects"


def validate_warmup(config: Config) -> None:
    """Raise ConfigError for the first error in the `model_warmup` of `config`, with Triton's message.

    Samples of no requests are not looked at.
    """
    for sample in config.model_warmup:
        if sample.batch_size == 0:
            continue
        if sample.batch_size > WARMUP_REQUESTS_MAX:
            raise ConfigError(
                f"warmup sample '{sample.name}' has {sample.batch_size} requests, more than {WARMUP_REQUESTS_MAX}. To "
                "execute a sample several times set its 'count'"
            )
        if sample.count > WARMUP_COUNT_MAX:
            raise ConfigError(
                f"warmup sample '{sample.name}' has the 'count' {sample.count}, more than {WARMUP_COUNT_MAX}"
            )
        for name in sorted(sample.inputs):
            tensor = sample.inputs[name]
            if any(dim < 0 for dim in tensor.dims):
                raise ConfigError(
                    f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
                )
            if tensor.data_type not in BY_NUMBER:
                raise ConfigError(f"{_TRITON_INVALID} input '{name}' to have a valid data_type")
            if tensor.WhichOneof("input_data_type") is None:
                raise ConfigError(f"{_TRITON_INVALID} input '{name}' to have input_data_type set")
            if (size := _byte_size(tensor)) > WARMUP_BYTES_MAX:
                raise ConfigError(
                    f"input '{name}' of warmup sample '{sample.name}' has {size} bytes, more than {WARMUP_BYTES_MAX}"
                )


def warmup_samples(config: Config) -> tuple[WarmupSample, ...]:
    """The samples of `config`, which is valid, without those of no requests."""
    return tuple(
        WarmupSample(
            sample.name,
            sample.batch_size,
            max(1, sample.count),
            tuple(_input(name, sample.inputs[name], config) for name in sorted(sample.inputs)),
        )
        for sample in config.model_warmup
        if sample.batch_size > 0
    )


def _input(name: str, tensor: Config, config: Config) -> WarmupInput:
    datatype = BY_NUMBER[tensor.data_type]
    is_input = any(each.name == name for each in config.input)
    batch = [1] if is_input and config.max_batch_size > 0 else []
    return WarmupInput(
        name=name,
        datatype=datatype.name,
        shape=(*batch, *tensor.dims),
        size=_byte_size(tensor),
        # As in Triton, random strings are empty ones.
        is_random=tensor.random_data and bool(datatype.size),
        file=tensor.input_data_file,
        is_control=not is_input,
    )


def _byte_size(tensor: Config) -> int:
    """The size of an input of zeros. An element of BYTES is then an empty string: only its length prefix."""
    size: int = prod(tensor.dims) * (BY_NUMBER[tensor.data_type].size or BYTES_PREFIX_SIZE)
    return size

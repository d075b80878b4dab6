# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Warm-up samples of a configuration: sizes and shapes, and Triton's messages."""

import pytest

from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.config.spec import WarmupInput
from pyruntime.runtime.config.warmup import (
    WARMUP_BYTES_MAX,
    WARMUP_COUNT_MAX,
    WARMUP_REQUESTS_MAX,
    validate_warmup,
    warmup_samples,
)
from pyruntime.utils.errors import ConfigError

TENSORS = "name: 'm' input { name: 'A' data_type: TYPE_FP32 dims: [ -1, 3 ] } "


def config(text):
    return parse_model_config(TENSORS + text, "config.pbtxt")


def sample(inputs, batch_size=2):
    return f"model_warmup {{ name: 's' batch_size: {batch_size} {inputs} }}"


def test_inputs():
    """Inputs of the model get a batch dimension of 1 if it batches; others are given to it as they are."""
    inputs = (
        "inputs { key: 'A' value { data_type: TYPE_FP32 dims: [ 2, 3 ] random_data: true } } "
        "inputs { key: 'START' value { data_type: TYPE_INT32 dims: 1 zero_data: true } } "
        "inputs { key: 'T' value { data_type: TYPE_STRING dims: 2 random_data: true } } "
        "inputs { key: 'F' value { data_type: TYPE_INT8 dims: 4 input_data_file: 'f' } } "
    )
    (found,) = warmup_samples(config("max_batch_size: 4 " + sample(inputs)))
    assert (found.name, found.batch_size, found.count) == ("s", 2, 1)
    assert found.inputs == (
        WarmupInput("A", "FP32", (1, 2, 3), 24, True, "", False),
        WarmupInput("F", "INT8", (4,), 4, False, "f", True),
        WarmupInput("START", "INT32", (1,), 4, False, "", True),
        WarmupInput("T", "BYTES", (2,), 8, False, "", True),
    )
    (found,) = warmup_samples(config(sample(inputs)))
    assert found.inputs[0].shape == (2, 3)


def test_no_requests():
    """A sample of no requests does nothing."""
    text = "inputs { key: 'A' value { data_type: TYPE_FP32 dims: [ 2, 3 ] zero_data: true } } "
    assert warmup_samples(config(sample(text, batch_size=0))) == ()


def test_too_many_requests():
    """The requests of a sample wait together, so their number has a limit."""
    text = "inputs { key: 'A' value { data_type: TYPE_FP32 dims: [ 2, 3 ] zero_data: true } } "
    validate_warmup(config(sample(text, batch_size=WARMUP_REQUESTS_MAX)))
    with pytest.raises(ConfigError, match=f"has {WARMUP_REQUESTS_MAX + 1} requests, more than {WARMUP_REQUESTS_MAX}"):
        validate_warmup(config(sample(text, batch_size=WARMUP_REQUESTS_MAX + 1)))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (
            "data_type: TYPE_FP32 dims: [ -1, 3 ] zero_data: true",
            "warmup setting expects all variable-size dimensions are specified for input 'A'",
        ),
        (
            "data_type: TYPE_FP32 dims: [ 1, 3 ]",
            "[request id: <id_unknown>] warmup setting expects input 'A' to have input_data_type set",
        ),
        (
            "dims: 1 zero_data: true",
            "[request id: <id_unknown>] warmup setting expects input 'A' to have a valid data_type",
        ),
        (
            f"data_type: TYPE_INT8 dims: {WARMUP_BYTES_MAX + 1} zero_data: true",
            f"input 'A' of warmup sample 's' has {WARMUP_BYTES_MAX + 1} bytes, more than {WARMUP_BYTES_MAX}",
        ),
        (
            f"data_type: TYPE_FP64 dims: [ {2**62}, {2**62} ] random_data: true",
            f"input 'A' of warmup sample 's' has {2**127} bytes, more than {WARMUP_BYTES_MAX}",
        ),
    ],
)
def test_errors(tensor, message):
    """What the samples need."""
    with pytest.raises(ConfigError) as caught:
        validate_warmup(config(sample(f"inputs {{ key: 'A' value {{ {tensor} }} }}")))
    assert str(caught.value) == message


def test_a_sample_is_executed_a_bounded_number_of_times():
    text = "inputs { key: 'A' value { data_type: TYPE_FP32 dims: [ 2, 3 ] zero_data: true } } count: "
    validate_warmup(config(sample(text + str(WARMUP_COUNT_MAX))))
    with pytest.raises(ConfigError, match=f"has the 'count' 4294967295, more than {WARMUP_COUNT_MAX}"):
        validate_warmup(config(sample(text + "4294967295")))

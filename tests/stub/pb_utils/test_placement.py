# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Preferred memory and the trace of a BLS request."""

import pytest

from pyruntime.stub.pb_utils import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    PreferredMemory,
)
from pyruntime.stub.pb_utils.placement import InferenceTrace


@pytest.mark.parametrize("kind", [TRITONSERVER_MEMORY_CPU, TRITONSERVER_MEMORY_GPU])
@pytest.mark.parametrize("device", [(), (0,), (3,)])
def test_preferred_memory(kind, device):
    """A kind of memory, and a device."""
    assert repr(PreferredMemory(kind, *device)) == f"PreferredMemory({kind.name}, {device[0] if device else 0})"


def test_preferred_memory_by_name():
    """The way models write it."""
    made = PreferredMemory(preferred_memory_type=TRITONSERVER_MEMORY_GPU, preferred_device_id=1)
    assert repr(made) == "PreferredMemory(TRITONSERVER_MEMORY_GPU, 1)"


def test_triton_s_numbers():
    """As in Triton, where GPU is 0."""
    assert (int(TRITONSERVER_MEMORY_GPU), int(TRITONSERVER_MEMORY_CPU)) == (0, 1)


@pytest.mark.parametrize("wrong", [None, "CPU", 7, 0], ids=repr)
def test_that_is_none(wrong):
    """A value that is not a kind of memory is refused."""
    with pytest.raises(TypeError, match="preferred_memory_type must be"):
        PreferredMemory(wrong)


def test_trace():
    """A trace has a context, or not. One that only the server knows has none for anybody else."""
    assert InferenceTrace().get_context() is None
    assert InferenceTrace("12").get_context() is None
    assert InferenceTrace('{"traceparent": "00"}').get_context() == '{"traceparent": "00"}'

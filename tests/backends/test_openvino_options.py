# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The parameters of OpenVINO models. No framework is needed."""

import pytest

from pyruntime.backends.openvino.models import describe_error
from pyruntime.backends.openvino.options import check_device, read_options
from pyruntime.backends.toolkit.settings import read_settings
from pyruntime.utils.errors import ConfigError


def read(kind="CPU", count=1, **parameters):
    texts = {name: {"string_value": value} for name, value in parameters.items()}
    settings = read_settings({"name": "m", "parameters": texts, "instance_group": [{"count": count}]})
    return read_options(settings, 3, kind, "1")


def test_defaults():
    """An instance on the CPU has its part of the cores, and one stream."""
    found = read()
    assert found.device == "CPU"
    assert found.properties == {"INFERENCE_NUM_THREADS": 3, "NUM_STREAMS": "1", "ENABLE_CPU_PINNING": True}
    assert (found.extensions, found.keeps_batch_size, found.pads_batches, found.reshapes) == ((), False, False, False)


def test_several_instances():
    """The threads of several processes are not bound to the same cores."""
    assert read(count=2).properties["ENABLE_CPU_PINNING"] is False


def test_parameters():
    """All parameters have Triton's names and values."""
    found = read(
        INFERENCE_NUM_THREADS="2",
        COMPILATION_NUM_THREADS="1",
        NUM_STREAMS="AUTO",
        HINT_BF16="YES",
        CPU_EXTENSION_PATH="/ops.so",
        SKIP_OV_DYNAMIC_BATCHSIZE="yes",
        ENABLE_BATCH_PADDING="true",
        RESHAPE_IO_LAYERS="NO",
    )
    assert found.properties == {
        "INFERENCE_NUM_THREADS": 2,
        "NUM_STREAMS": "AUTO",
        "ENABLE_CPU_PINNING": True,
        "COMPILATION_NUM_THREADS": 1,
        "INFERENCE_PRECISION_HINT": "bf16",
    }
    assert found.extensions == ("/ops.so",)
    assert (found.keeps_batch_size, found.pads_batches, found.reshapes) == (True, True, False)


def test_devices():
    """The parameter counts more than the kind. Another device gets only the properties that are given."""
    assert read("GPU").device == "GPU.1"
    assert read("GPU", TARGET_DEVICE="AUTO:GPU,CPU").device == "AUTO:GPU,CPU"
    assert read("MODEL").device == "CPU"
    assert read("GPU").properties == {}
    assert read("GPU", NUM_STREAMS="2", INFERENCE_NUM_THREADS="4").properties == {
        "INFERENCE_NUM_THREADS": 4,
        "NUM_STREAMS": "2",
    }


def test_devices_that_are_not_there():
    """The message has those that are. The plugins of several devices say themselves what they miss."""
    settings = read_settings({"name": "m"})
    for device in ("CPU", "AUTO:NPU,CPU", "GPU.1"):
        check_device(settings, device, ("CPU", "GPU.0", "GPU.1"))
    with pytest.raises(ConfigError, match=r"^model 'm' has an instance on GPU.1, and OpenVINO finds CPU: install the"):
        check_device(settings, "GPU.1", ("CPU",))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("INFERENCE_NUM_THREADS", "-1", "at least 0"),
        ("NUM_STREAMS", "0", "AUTO, NUMA or a number from 1"),
        ("ENABLE_BATCH_PADDING", "on", "YES or NO"),
    ],
)
def test_refused(name, value, expected):
    """The message has the parameter, its value, and what it may be."""
    with pytest.raises(ConfigError) as caught:
        read(**{name: value})
    assert str(caught.value) == f"model 'm' has the parameter {name} '{value}', which must be {expected}"


def test_messages():
    """What OpenVINO says of its own source is left out."""
    text = "Exception from src/core.cpp:1:\nException from src/b.cpp:2:\nNotFound: x\n  by y\n\n"
    assert describe_error(Exception(text)) == "openvino error: NotFound: x by y"

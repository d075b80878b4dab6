# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The threads and devices of an instance of TensorFlow, which a stand-in of the framework gets."""

from types import SimpleNamespace

import pytest

from pyruntime.backends.tensorflow.process import choose_device, set_threads
from pyruntime.backends.toolkit.settings import read_settings
from pyruntime.utils.errors import ConfigError


def settings(**parameters):
    return read_settings(
        {"name": "m", "parameters": {name: {"string_value": value} for name, value in parameters.items()}}
    )


@pytest.fixture
def tensorflow():
    """Notes what is set in `seen`. It has two GPUs."""
    seen = {}
    config = SimpleNamespace(
        threading=SimpleNamespace(
            set_intra_op_parallelism_threads=lambda count: seen.update(intra=count),
            set_inter_op_parallelism_threads=lambda count: seen.update(inter=count),
        ),
        list_physical_devices=lambda kind: ["gpu 0", "gpu 1"],
        set_visible_devices=lambda devices, kind: seen.update(visible=devices),
        experimental=SimpleNamespace(set_memory_growth=lambda gpu, grows: seen.setdefault("growing", []).append(gpu)),
    )
    return SimpleNamespace(config=config, seen=seen, __version__="2.0")


def test_threads(tensorflow):
    """An instance has its part of the cores, and Triton's parameters say otherwise; 0 leaves it to TensorFlow."""
    set_threads(tensorflow, settings(), 3)
    assert tensorflow.seen == {"intra": 3, "inter": 3}
    set_threads(tensorflow, settings(TF_NUM_INTRA_THREADS="0", TF_NUM_INTER_THREADS="2"), 3)
    assert tensorflow.seen == {"intra": 0, "inter": 2}
    for name, value in (("TF_NUM_INTRA_THREADS", "-1"), ("TF_USE_PER_SESSION_THREADS", "maybe")):
        with pytest.raises(ConfigError, match=f"has the parameter {name} '{value}', which must be"):
            set_threads(tensorflow, settings(**{name: value}), 3)


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        ("CPU", {"visible": []}),
        ("GPU", {"visible": ["gpu 1"], "growing": ["gpu 1"]}),
        ("MODEL", {"growing": ["gpu 0", "gpu 1"]}),
    ],
)
def test_devices(tensorflow, kind, seen):
    """An instance sees its device only, and takes the memory of a GPU as it needs it."""
    choose_device(tensorflow, settings(), kind, "1")
    assert tensorflow.seen == seen


def test_a_gpu_that_is_not_there(tensorflow):
    """The message says what TensorFlow finds."""
    with pytest.raises(ConfigError, match=r"KIND_GPU on GPU 2, and tensorflow 2.0 finds 2 GPUs: install tensorflow\["):
        choose_device(tensorflow, settings(), "GPU", "2")

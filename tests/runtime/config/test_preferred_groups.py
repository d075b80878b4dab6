# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The instance groups that backends prefer."""

import pytest

from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.config.preferred_groups import with_preferred_groups

AUTO, CPU, GPU, MODEL = range(4)


def preferred(groups, gpus=(), backend="b"):
    """The kind, the count and the GPUs of the group of a model that configures none."""
    config = parse_model_config(f"backend: '{backend}'", "config.pbtxt")
    normalized = normalize(config, directory_name="m", files=[], gpus=gpus)
    (group,) = with_preferred_groups(normalized, groups, gpus).instance_group
    return group.Kind.Name(group.kind), group.count, list(group.gpus)


@pytest.mark.parametrize(
    ("groups", "gpus", "expected"),
    [
        ([], (), ("KIND_CPU", 1, [])),
        ([(CPU, 3, [])], (), ("KIND_CPU", 3, [])),
        ([(GPU, 2, []), (MODEL, 0, [])], (), ("KIND_MODEL", 1, [])),
        ([(GPU, 2, []), (CPU, 3, [])], (0, 1), ("KIND_GPU", 2, [0, 1])),
        ([(GPU, 0, [1])], (0, 1), ("KIND_GPU", 1, [1])),
        ([(GPU, 1, [7]), (CPU, 0, [])], (0,), ("KIND_CPU", 1, [])),
        ([(AUTO, 0, [])], (), ("KIND_CPU", 1, [])),
        ([(AUTO, 0, [])], (0,), ("KIND_GPU", 1, [0])),
    ],
)
def test_first_that_the_host_can_satisfy(groups, gpus, expected):
    """The first group whose GPUs the host has counts; a group without a number has the default one."""
    assert preferred(groups, gpus) == expected


def test_default_count():
    """It depends on the kind that the backend prefers."""
    assert preferred([(CPU, 0, [])], (0,), "onnxruntime")[:2] == ("KIND_CPU", 2)
    assert preferred([(MODEL, 0, [])], (), "onnxruntime")[:2] == ("KIND_MODEL", 1)

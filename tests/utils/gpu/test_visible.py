# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""CUDA_VISIBLE_DEVICES."""

import pytest

from pyruntime.utils.gpu.driver import GpuProperties
from pyruntime.utils.gpu.visible import visible


def gpu(index, uuid, is_slice=False):
    return GpuProperties(index, uuid, "G", (8, 0), 100, 50, is_slice)


GPUS = [gpu(0, "GPU-aa1"), gpu(1, "GPU-ab2"), gpu(2, "MIG-c3", True)]


@pytest.mark.parametrize(
    ("value", "uuids"),
    [
        (None, ["GPU-aa1", "GPU-ab2", "MIG-c3"]),
        ("", []),
        ("-1", []),
        ("1", ["GPU-ab2"]),
        ("1,0", ["GPU-ab2", "GPU-aa1"]),
        ("0, 1", ["GPU-aa1", "GPU-ab2"]),
        ("0,7,1", ["GPU-aa1"]),
        ("0,0", ["GPU-aa1"]),
        ("GPU-ab", ["GPU-ab2"]),
        ("GPU-a", []),
        ("MIG-c3", ["MIG-c3"]),
        ("2", []),
    ],
)
def test_visible(value, uuids):
    """Entries are numbers of whole GPUs or beginnings of UUIDs; from the first invalid one on they do not count."""
    found = visible(GPUS, value)
    assert [each.uuid for each in found] == uuids
    assert [each.ordinal for each in found] == list(range(len(uuids)))

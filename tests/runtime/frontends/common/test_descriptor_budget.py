# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How many connections descriptors allow."""

import pytest

from pyruntime.runtime.frontends.common.descriptor_budget import (
    CONNECTIONS_MAX,
    DESCRIPTORS_KEPT,
    DESCRIPTORS_KEPT_MIN,
    connections_max,
)


@pytest.mark.parametrize(
    ("limit", "expected"), [(256, 128), (1024, 768), (1 << 20, CONNECTIONS_MAX), (None, CONNECTIONS_MAX)]
)
def test_nothing_else(limit, expected):
    """Descriptors are left for everything else."""
    assert connections_max(limit, 0) == expected


@pytest.mark.parametrize(
    ("held", "expected"),
    [(100, 668), (424, 344), (512, 256), (768, 128), (960, 16), (1000, 0), (1024, 0), (2000, 0)],
)
def test_models(held, expected):
    """What models hold, connections cannot have; of a few free descriptors they leave half."""
    assert connections_max(1024, held) == expected


def test_enough_is_left():
    """With all connections that there may be, some of the free descriptors are left to start stubs with."""
    for held in range(1024):
        left = 1024 - held - connections_max(1024, held)
        assert left >= min(DESCRIPTORS_KEPT, (1024 - held) / 2)
        assert left >= min(DESCRIPTORS_KEPT_MIN, 1024 - held)

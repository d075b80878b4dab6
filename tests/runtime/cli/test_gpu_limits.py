# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The limits of GPUs, as operators write them."""

import pytest

from pyruntime.runtime.cli.gpu_limits import read_gpu_limits, read_pool_sizes
from pyruntime.runtime.settings import SettingsError


def test_limits():
    """One for each GPU; the last one counts."""
    assert read_gpu_limits([]) == {}
    assert read_gpu_limits(["0:0.5", "3:1", "0:0.25"]) == {0: 0.25, 3: 1.0}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0", "--model-load-gpu-limit needs <device>:<fraction>, not '0'"),
        ("-1:0.5", "--model-load-gpu-limit expects device ID >= 0, got -1"),
        ("a:0.5", "--model-load-gpu-limit expects device ID >= 0, got a"),
        ("0:half", "--model-load-gpu-limit needs a fraction, not 'half'"),
        ("0:1.5", "--model-load-gpu-limit expects limit fraction to be in range [0.0, 1.0], got 1.500000"),
        ("0:-1", "--model-load-gpu-limit expects limit fraction to be in range [0.0, 1.0], got -1.000000"),
        ("0:nan", "--model-load-gpu-limit expects limit fraction to be in range [0.0, 1.0], got nan"),
    ],
)
def test_refusals(text, problem):
    """Triton's words, where it has any."""
    with pytest.raises(SettingsError) as caught:
        read_gpu_limits([text])
    assert str(caught.value) == problem


def test_pool_sizes():
    """One for each GPU; the last one counts."""
    assert read_pool_sizes([]) == {}
    assert read_pool_sizes(["0:1024", "3:0", "0:64"]) == {0: 64, 3: 0}


@pytest.mark.parametrize("text", ["0", "0:", ":1", "-1:5", "0:-5", "0:1.5", "a:b", "0:²"])
def test_refusals_of_pool_sizes(text):
    """Of all that is no number and a number of bytes."""
    with pytest.raises(SettingsError) as caught:
        read_pool_sizes([text])
    assert str(caught.value) == f"--cuda-memory-pool-byte-size needs <device>:<bytes>, not {text!r}"

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The options of the rate limiter."""

import pytest

from pyruntime.runtime.cli.rate_limit import read_rate_limit, read_rate_limit_resources
from pyruntime.runtime.settings import ResourceLimit, SettingsError


def test_modes():
    """Both modes, in any case; nothing else."""
    assert [read_rate_limit(text) for text in ("off", "OFF", "execution_count", "Execution_Count")] == [0, 0, 1, 1]
    with pytest.raises(SettingsError, match=r"^invalid argument for --rate-limit: 'on'"):
        read_rate_limit("on")


@pytest.mark.parametrize(
    ("texts", "limits"),
    [
        ([], []),
        (["R:4"], [("R", 4, None)]),
        (["R:4:0", "S:0"], [("R", 4, 0), ("S", 0, None)]),
        (["memory:8G"], [("memory", 8 << 30, None)]),
        (["m:1K:1", "m:1M", "m:3T:2"], [("m", 1 << 10, 1), ("m", 1 << 20, None), ("m", 3 << 40, 2)]),
        (["R:4", "R:3", "R:5", "R:2:0", "r:1"], [("R", 3, None), ("R", 2, 0), ("r", 1, None)]),
    ],
)
def test_limits(texts, limits):
    """Counts and sizes, for a device or each; of equal ones the smaller."""
    assert read_rate_limit_resources(texts) == tuple(ResourceLimit(*each) for each in limits)


@pytest.mark.parametrize("text", ["", "R", ":4", "R:1:2:3"])
def test_format(text):
    """Triton's message."""
    with pytest.raises(SettingsError) as caught:
        read_rate_limit_resources([text])
    assert str(caught.value) == (
        "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. Got "
        + text
    )


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("R:", ""), ("R:x", "x"), ("R:-1", "-1"), ("R:1.5G", "1.5G"), ("R:1X", "1X"), ("R:1:", ""), ("R:1:-1", "-1")],
)
def test_numbers(text, wrong):
    """A number that is none, or negative."""
    with pytest.raises(SettingsError, match=rf"Invalid option value\. Got {wrong};"):
        read_rate_limit_resources([text])


@pytest.mark.parametrize("device", ["2147483648", "9" * 5000])
def test_large_device(device):
    """The number of a device is an int."""
    assert read_rate_limit_resources(["R:1:2147483647"])
    with pytest.raises(SettingsError, match="out of bound"):
        read_rate_limit_resources([f"R:1:{device}"])

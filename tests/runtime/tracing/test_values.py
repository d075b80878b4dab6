# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from pyruntime.runtime.tracing.values import read_count, read_levels, read_log_frequency, read_rate


@pytest.mark.parametrize(
    ("texts", "levels"),
    [
        (["OFF"], ()),
        ([], ()),
        (["TIMESTAMPS"], ("TIMESTAMPS",)),
        (["TENSORS", "TIMESTAMPS"], ("TIMESTAMPS", "TENSORS")),
        (["tensors", "TENSORS"], ("TENSORS",)),
        (["MIN"], ("TIMESTAMPS",)),
        (["MAX"], ("TIMESTAMPS",)),
    ],
)
def test_levels(texts, levels):
    """Levels stand in Triton's order, once each, and have older names."""
    assert read_levels(texts) == levels


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["BAD"], "Unknown trace level 'BAD': expecting OFF, TIMESTAMPS or TENSORS"),
        (["OFF", "TENSORS"], "Expect only one trace level 'OFF' is specified"),
        (["OFF", "OFF"], "Expect only one trace level 'OFF' is specified"),
    ],
)
def test_levels_that_are_none(texts, message):
    """OFF stands alone, and a level that is not known is not passed over."""
    with pytest.raises(ValueError) as caught:
        read_levels(texts)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (read_rate, "1", 1),
        (read_rate, "4294967295", 2**32 - 1),
        (read_count, "-1", -1),
        (read_count, "0", 0),
        (read_count, "2147483647", 2**31 - 1),
        (read_log_frequency, "0", 0),
        (read_log_frequency, "+7", 7),
    ],
)
def test_numbers(read, text, value):
    """Numbers have the ranges of Triton's integers."""
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_rate, "x", "Unable to parse 'trace_rate', got: x"),
        (read_rate, "", "Unable to parse 'trace_rate', got: "),
        (read_rate, "5x", "Unable to parse 'trace_rate', got: 5x"),
        (read_rate, "9" * 41, f"Unable to parse 'trace_rate', got: {'9' * 41}"),
        (read_rate, "0", "Attempting to set invalid trace setting :sample rate must be non-zero"),
        (
            read_rate,
            "4294967296",
            "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 4294967296",
        ),
        (read_rate, "-5", "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: -5"),
        (read_count, "x", "Unable to parse 'trace_count', got: x"),
        (read_count, "-2", "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
        (
            read_count,
            "2147483648",
            "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 2147483648",
        ),
        (read_log_frequency, "1.5", "Unable to parse 'log_frequency', got: 1.5"),
        (
            read_log_frequency,
            "99999999999",
            "Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], got: 99999999999",
        ),
    ],
)
def test_numbers_that_are_none(read, text, message):
    """A value that cannot be read is refused with Triton's message."""
    with pytest.raises(ValueError) as caught:
        read(text)
    assert str(caught.value) == message

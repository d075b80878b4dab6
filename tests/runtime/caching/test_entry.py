# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A response that is encoded for the cache is decoded to an equal one; other data is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.caching.entry import decode, encode
from pyruntime.runtime.requests.types import OutputTensor
from pyruntime.utils.arena import ALIGNMENT

OUTPUTS = st.lists(
    st.builds(
        OutputTensor,
        st.text(max_size=9),
        st.sampled_from(["INT8", "BYTES", "FP64"]),
        st.lists(st.integers(0, 9), max_size=3),
        st.binary(max_size=200),
    ),
    max_size=4,
)


@given(OUTPUTS)
def test_there_and_back(outputs):
    """Any outputs, with contents of any size, none included."""
    assert decode(memoryview(encode(outputs))) == outputs


@given(OUTPUTS)
def test_contents_are_aligned(outputs):
    """Contents are aligned, so that they can be read at full speed."""
    entry = memoryview(encode(outputs))
    base = np.frombuffer(entry, np.uint8).ctypes.data
    for output in decode(entry):
        if output.data:
            assert (np.frombuffer(output.data, np.uint8).ctypes.data - base) % ALIGNMENT == 0


@pytest.mark.parametrize("size", [0, 5, 20, ALIGNMENT, ALIGNMENT + 3])
def test_cut_off(size):
    """An entry that was shortened."""
    entry = encode([OutputTensor("OUT", "INT8", [4], b"abcd")])
    with pytest.raises(ValueError):
        decode(memoryview(entry)[:size])


@pytest.mark.parametrize("head", [b"[1]", b"{}x", b"[[1, 2]]", b'[["a", "INT8", [1], "b"]]', b"\xff"])
def test_another_head(head):
    """An entry in another format is refused."""
    with pytest.raises(ValueError):
        decode(memoryview(len(head).to_bytes(8, "little") + head))

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A response that is encoded for the cache is decoded to an equal one; other data is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.caching.entry import decode, decode_stream, encode
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


@given(st.lists(OUTPUTS), st.booleans())
def test_stream(responses, has_end):
    """A stream of any responses, whose last one may be followed by a bare end."""
    stream = [*responses, None] if has_end or not responses else responses
    entry = b"".join(map(encode, stream))
    assert decode_stream(memoryview(entry)) == stream
    assert len(entry) % ALIGNMENT == 0


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (encode(None), "it is a stream of responses"),
        (encode([]) + encode([]), "it is a stream of responses"),
    ],
)
def test_stream_for_one_response(entry, expected):
    """A model that answers once has no use for a stream."""
    with pytest.raises(ValueError, match=expected):
        decode(memoryview(entry))


@pytest.mark.parametrize("entry", [b"", encode(None) + encode([]), encode([])[:-1] + b"x" * 9])
def test_malformed_stream(entry):
    """No entry, one that goes on behind its end, and one with something else behind it."""
    with pytest.raises(ValueError):
        decode_stream(memoryview(entry))

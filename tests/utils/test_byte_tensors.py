# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.utils.byte_tensors import deserialize_bytes_tensor, serialize_byte_tensor

WIRE = b"\x02\x00\x00\x00ab\x00\x00\x00\x00\x03\x00\x00\x00\x00\xffc"


def objects(*elements):
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array


def test_serialize_writes_little_endian_lengths():
    """Every element is its length in four bytes, little-endian, and then its bytes."""
    assert serialize_byte_tensor(objects(b"ab", b"", b"\x00\xffc")) == WIRE


def test_serialize_fixed_length_bytes():
    """numpy's fixed-length bytes are written without their padding."""
    assert serialize_byte_tensor(np.array([b"ab", b"c"])) == b"\x02\x00\x00\x00ab\x01\x00\x00\x00c"


def test_serialize_text_and_others_as_utf8_of_str():
    """Elements that are not bytes are written as the UTF-8 of their str()."""
    encoded = serialize_byte_tensor(objects("é", 12, None, np.bytes_(b"raw")))
    assert list(deserialize_bytes_tensor(encoded)) == ["é".encode(), b"12", b"None", b"raw"]


@pytest.mark.parametrize("order", ["C", "F"])
def test_serialize_goes_in_c_order(order):
    """The memory order of the array does not show in the encoding."""
    array = np.array([[b"a", b"b"], [b"c", b"d"]], dtype=object, order=order)
    assert list(deserialize_bytes_tensor(serialize_byte_tensor(array))) == [b"a", b"b", b"c", b"d"]
    assert list(deserialize_bytes_tensor(serialize_byte_tensor(array.T))) == [b"a", b"c", b"b", b"d"]


def test_serialize_zero_dimensional():
    """An array without dimensions is one element."""
    assert serialize_byte_tensor(np.array(b"ab", dtype=object)) == b"\x02\x00\x00\x00ab"


@pytest.mark.parametrize("dtype", ["O", "S3", "f4"])
def test_serialize_empty_is_an_empty_tuple(dtype):
    """An array without elements is encoded as an empty tuple instead of bytes, for every dtype."""
    assert serialize_byte_tensor(np.empty((2, 0), dtype=dtype)) == ()


@pytest.mark.parametrize("dtype", ["f4", "u1", "U3"])
def test_serialize_other_dtypes_is_none(dtype):
    """Arrays of numbers and of unicode have no encoding."""
    assert serialize_byte_tensor(np.ones(2, dtype=dtype)) is None


def test_serialize_refuses_what_the_prefix_cannot_hold():
    """An element of 4 GiB or more is an error, not a wrong length."""

    class Huge(bytes):
        def __len__(self):
            return 1 << 32

    with pytest.raises(ValueError, match=r"^an element of a BYTES tensor must be shorter than 4 GiB$"):
        serialize_byte_tensor(objects(Huge()))


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_deserialize_any_buffer(buffer):
    """Decoding gives a flat object array of bytes that no longer depend on the buffer."""
    decoded = deserialize_bytes_tensor(buffer(WIRE))
    assert decoded.dtype == object
    assert decoded.shape == (3,)
    assert [type(each) for each in decoded] == [bytes] * 3
    assert list(decoded) == [b"ab", b"", b"\x00\xffc"]


def test_deserialize_nothing():
    """An empty encoding is an array without elements."""
    decoded = deserialize_bytes_tensor(b"")
    assert (decoded.dtype, decoded.shape) == (np.dtype(object), (0,))


def test_deserialize_truncated_length():
    """An encoding that ends inside a length is an error that says where."""
    with pytest.raises(ValueError) as caught:
        deserialize_bytes_tensor(WIRE[:8])
    assert str(caught.value) == (
        "BYTES tensor is truncated: element 1 starts at byte 6 of 8 and needs 4 bytes for its length"
    )


def test_deserialize_truncated_element():
    """An encoding that ends inside an element is an error that says where."""
    with pytest.raises(ValueError) as caught:
        deserialize_bytes_tensor(WIRE[:-1])
    assert str(caught.value) == "BYTES tensor is truncated: element 2 ends at byte 17 of 16"


def test_deserialize_every_truncation():
    """Cut anywhere but between elements, the encoding is refused."""
    whole = {0, 6, 10, 17}
    for size in range(len(WIRE) + 1):
        if size in whole:
            assert len(deserialize_bytes_tensor(WIRE[:size])) == sorted(whole).index(size)
        else:
            with pytest.raises(ValueError, match="truncated"):
                deserialize_bytes_tensor(WIRE[:size])


@given(st.lists(st.binary(max_size=40), min_size=1))
def test_round_trip(elements):
    """Any bytes come back as they went."""
    assert list(deserialize_bytes_tensor(serialize_byte_tensor(objects(*elements)))) == elements


@given(st.binary(max_size=64))
def test_garbage_is_a_value_error_or_a_tensor(garbage):
    """Any bytes at all either decode, and encode again to themselves, or raise ValueError."""
    try:
        decoded = deserialize_bytes_tensor(garbage)
    except ValueError:
        return
    assert serialize_byte_tensor(decoded) == (garbage or ())

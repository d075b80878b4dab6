# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Compressed bodies: both formats both ways, bad bodies, and bodies that are larger than they seem."""

import gzip
import tracemalloc
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.frontends.common.compression import (
    ENCODINGS,
    MEMBERS_MAX,
    accepted_encoding,
    compress,
    compress_all,
    decompress,
)
from pyruntime.utils.errors import Code, InferenceError

COMPRESS = {"gzip": gzip.compress, "deflate": zlib.compress}
DECOMPRESS = {"gzip": gzip.decompress, "deflate": zlib.decompress}
MIB = 1 << 20

encodings = pytest.mark.parametrize("encoding", ENCODINGS)


def refusal(data, encoding="gzip", limit=MIB):
    with pytest.raises(InferenceError) as caught:
        decompress(data, encoding, limit)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


def damaged(encoding):
    return (
        f"the request cannot be decompressed: it is not in the format of {encoding}, is damaged, or is followed by "
        "something else"
    )


def cut(encoding):
    return f"the request is compressed with {encoding}, and its end is missing"


class TestFormats:
    @encodings
    @given(data=st.binary(), level=st.integers(1, 9))
    def test_there_and_back(self, encoding, data, level):
        """Contents are unchanged after compressing and decompressing, by us and by the standard library."""
        assert decompress(compress(data, encoding, level), encoding, len(data)) == data
        assert DECOMPRESS[encoding](compress(data, encoding, level)) == data
        assert decompress(COMPRESS[encoding](data), encoding, len(data)) == data

    @given(parts=st.lists(st.binary()))
    def test_parts(self, parts):
        """Parts are compressed as if they were one."""
        views = [memoryview(part) for part in parts]
        assert gzip.decompress(compress_all(views, "gzip")) == b"".join(parts)

    @encodings
    def test_other_format(self, encoding):
        """As in Triton, either name stands for both formats."""
        for compressed in COMPRESS.values():
            assert decompress(bytearray(compressed(b"x" * 1000)), encoding, 1000) == b"x" * 1000

    @pytest.mark.parametrize("size", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
    def test_large(self, size):
        """Large contents, which are decompressed in pieces, are complete."""
        for data in (bytes(size), bytes(range(251)) * (size // 251), zlib.compress(bytes(range(256))) * (size // 50)):
            assert decompress(gzip.compress(data), "gzip", len(data)) == data

    def test_several_members(self):
        """A file of gzip may be several of them, wherever in it they end."""
        parts = [bytes([n % 256]) * (n * 7) for n in range(500)]
        assert decompress(b"".join(map(gzip.compress, parts)), "gzip", MIB) == b"".join(parts)

    def test_members_have_a_limit(self):
        """Each of them costs something, however little is in it."""
        assert decompress(gzip.compress(b"") * MEMBERS_MAX, "gzip", 0) == b""
        assert refusal(gzip.compress(b"") * (MEMBERS_MAX + 1)) == (
            f"the request is compressed in more than {MEMBERS_MAX} parts"
        )


class TestMistakes:
    @encodings
    def test_not_compressed(self, encoding):
        """Contents that are no such thing, and such without their headers."""
        assert refusal(b'{"inputs": []}', encoding) == damaged(encoding)
        assert refusal(zlib.compress(b"x" * 100)[2:], encoding) == damaged(encoding)

    @encodings
    def test_cut(self, encoding):
        """Every beginning of a compressed body is recognised as one."""
        whole = COMPRESS[encoding](b"some text, some more text")
        assert {refusal(whole[:end], encoding) for end in range(len(whole))} == {cut(encoding)}
        assert refusal(whole + gzip.compress(b"x")[:-1], encoding) == cut(encoding)

    @encodings
    def test_followed_by_something(self, encoding):
        """A body must end where the compressed data ends."""
        assert refusal(COMPRESS[encoding](b"x") + b"garbage", encoding) == damaged(encoding)

    @encodings
    def test_damaged(self, encoding):
        """A checksum that is wrong."""
        whole = bytearray(COMPRESS[encoding](b"some text"))
        whole[-8 if encoding == "gzip" else -1] ^= 1
        assert refusal(whole, encoding) == damaged(encoding)

    @given(data=st.binary(max_size=200), encoding=st.sampled_from(ENCODINGS))
    def test_anything(self, data, encoding):
        """Arbitrary data is decompressed or refused."""
        with suppress(InferenceError):
            assert len(decompress(data, encoding, 100)) <= 100


class TestLimit:
    @encodings
    @pytest.mark.parametrize("size", [0, 1, 1000, MIB, 2 * MIB])
    def test_exact(self, encoding, size):
        """The limit itself may be reached, and not by one byte more."""
        data = COMPRESS[encoding](bytes(size))
        assert len(decompress(data, encoding, size)) == size
        if size:
            assert refusal(data, encoding, size - 1) == (
                f"the request has more than {size - 1} bytes once decompressed, the server accepts {size - 1}"
            )

    def test_bomb(self):
        """Contents that grow a thousandfold take no more memory than the limit allows."""
        bomb = zlib.compress(bytes(256 * MIB), 9)
        tracemalloc.start()
        try:
            refusal(bomb, "deflate", 4 * MIB)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 6 * MIB


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        ("", ""),
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("identity", ""),
        ("br", ""),
        ("x-gzip", ""),
        # The first of equals, and the largest weight.
        ("gzip, deflate", "gzip"),
        ("deflate,gzip", "deflate"),
        ("gzip, deflate, br, zstd", "gzip"),
        ("br, GZip", "gzip"),
        ("gzip;q=0.5, deflate;q=0.8", "deflate"),
        ("gzip ; Q=0.5 , deflate", "deflate"),
        ("gzip; q = 0.5", "gzip"),
        ("identity, gzip", ""),
        ("gzip, identity", "gzip"),
        ("identity;q=0.5, gzip;q=1.0", "gzip"),
        ("identity;q=1, gzip;q=0.5", ""),
        # None.
        ("gzip;q=0", ""),
        ("gzip;q=0.000, deflate;q=0.001", "deflate"),
        ("identity;q=0", ""),
        ("*;q=0", ""),
        # Anything.
        ("*", ""),
        ("gzip;q=0, *", ""),
        ("deflate, *;q=0.1", "deflate"),
        ("identity;q=0, *", "gzip"),
        ("identity;q=0, gzip;q=0, *", "deflate"),
        # Nonsense.
        (";;", ""),
        (",", ""),
        ("gzip;q=abc", ""),
        ("gzip;q=", ""),
        ("gzip;q=-1", ""),
        ("gzip;q=nan", ""),
        ("gzip;level=9", ""),
    ],
)
def test_accepted_encoding(header, encoding):
    """The client's first choice among the supported encodings is used."""
    assert accepted_encoding(header) == encoding


@given(header=st.text(alphabet="gzip, deflate*;q=.01identity\xff"))
def test_accepted_encoding_of_anything(header):
    """No header is too odd."""
    assert accepted_encoding(header) in ("", *ENCODINGS)

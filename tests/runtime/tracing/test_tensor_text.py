# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import json
import struct

import pytest

from pyruntime.runtime.tracing.tensor_text import tensor_text
from pyruntime.runtime.tracing.trace import TensorNote


def text(datatype, data, size=None):
    return tensor_text(TensorNote("T", datatype, (1,), data, len(data) if size is None else size))


@pytest.mark.parametrize(
    ("datatype", "data", "expected"),
    [
        ("BOOL", b"\1\0", "1,0"),
        ("UINT8", b"A\xff", "65,255"),
        ("INT8", b"A\xff", "65,-1"),
        ("UINT16", struct.pack("<2H", 1, 2**16 - 1), "1,65535"),
        ("INT16", struct.pack("<2h", 1, -1), "1,-1"),
        ("UINT32", struct.pack("<I", 2**32 - 1), "4294967295"),
        ("INT32", struct.pack("<i", -(2**31)), "-2147483648"),
        ("UINT64", struct.pack("<Q", 2**64 - 1), "18446744073709551615"),
        ("INT64", struct.pack("<q", -(2**63)), "-9223372036854775808"),
        ("FP16", struct.pack("<2e", 0.1, -2), "0.0999756,-2"),
        ("BF16", b"\x80\x3f\x00\xc0", "1,-2"),
        ("FP32", struct.pack("<3f", 0.1, 1234567.8, 1e20), "0.1,1.23457e+06,1e+20"),
        ("FP64", struct.pack("<4d", 1 / 3, 1e300, float("nan"), float("-inf")), "0.333333,1e+300,nan,-inf"),
        ("BYTES", b"\2\0\0\0ab\0\0\0\0", '"ab",""'),
        ("INT32", b"", ""),
        ("BYTES", b"", ""),
    ],
    ids=str,
)
def test_elements(datatype, data, expected):
    """Every datatype has its text, as Triton has it where that can be read."""
    assert text(datatype, data) == expected


def test_strings_in_quotes():
    """A string may have any contents: its end is recognisable, and no byte is lost."""
    strings = [b'q"u,o\\te', "é\n".encode(), b"\xff\0"]
    data = b"".join(struct.pack("<I", len(each)) + each for each in strings)
    assert json.loads(f"[{text('BYTES', data)}]") == ['q"u,o\\te', "é\n", "\\xff\0"]


@pytest.mark.parametrize(
    ("datatype", "data", "expected"),
    [
        ("INT32", struct.pack("<ii", 1, 2) + b"\3", "1,2,..."),
        ("FP16", b"\0\0\0", "0,..."),
        ("BF16", b"\0\0\0", "0,..."),
        ("BYTES", b"\1\0\0\0a\5\0\0\0bc", '"a",...'),
        ("BYTES", b"\1\0\0\0a\5\0", '"a",...'),
        ("UINT8", b"", "..."),
    ],
)
def test_cut(datatype, data, expected):
    """Where only the beginning was kept it can be seen, and no half of an element."""
    assert text(datatype, data, size=100) == expected

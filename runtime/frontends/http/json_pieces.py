# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Writes documents with large contents of tensors piece by piece, so that none is ever whole in memory. (pure)

document := text (MARK text)*        with the elements of a tensor in place of each MARK, which no JSON contains

The pieces together are what `unpack` and orjson make of the same tensors at once. Strings are decoded where they lie,
long ones in parts.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Iterator, Sequence

import orjson

from pyruntime.runtime.frontends.http.json_tensors import (
    SLICE_ELEMENTS,
    STRING_BYTES,
    StringError,
    check_form,
    number_words,
    numbers,
    string_length,
    wrong_count,
)
from pyruntime.runtime.requests.types import OutputTensor
from pyruntime.utils.dtypes import BYTES_PREFIX_SIZE

MARK = b"\0"
# What stands for the elements of a tensor while a document is written, and for the only one without a list.
ELEMENTS, ELEMENT = orjson.Fragment(b"[%b]" % MARK), orjson.Fragment(MARK)
# A piece is complete from this size on, in bytes, and may be longer by a slice of elements: some milliseconds' work.
PIECE_BYTES = 512 << 10
# Elements of a tensor whose contents are not as large as that are written at once.
LARGE_BYTES = 1 << 20


def check_elements(output: OutputTensor, is_stopped: Callable[[], bool]) -> None:
    """Check that the elements of an output can be written, unless `is_stopped` meanwhile.

    Raises InferenceError as `unpack` does.
    """
    check_form(output)
    if output.datatype != "BYTES":
        numbers(output)
        return
    for _ in _texts(output):
        if is_stopped():
            return


def pieces(document: bytes, outputs: Sequence[OutputTensor]) -> Iterator[bytes]:
    """The pieces of a document with a MARK for each of `outputs`, which have been checked.

    Raises InferenceError if their contents have changed since.
    """
    begin, *rest = document.split(MARK)
    parts, size = [begin], len(begin)
    for output, after in zip(outputs, rest, strict=True):
        words = _string_words(output) if output.datatype == "BYTES" else _number_words(output)
        for each in words:
            parts.append(each)
            size += len(each)
            if size >= PIECE_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
        parts.append(after)
        size += len(after)
    yield b"".join(parts)


def _number_words(output: OutputTensor) -> Iterator[bytes]:
    values = numbers(output)
    for start in range(0, len(values), SLICE_ELEMENTS):
        words = number_words(output.datatype, values[start : start + SLICE_ELEMENTS].tolist())
        yield b"," + words if start else words


def _string_words(output: OutputTensor) -> Iterator[bytes]:
    comma = b""
    for texts, begins, ends in _texts(output):
        words = orjson.dumps(texts)[1:-1]
        if not begins:
            words = words[1:]
        elif comma:
            words = comma + words
        yield words if ends else words[:-1]
        comma = b","


def _texts(output: OutputTensor) -> Iterator[tuple[list[str], bool, bool]]:
    """Elements, some at a time: (texts, whether they begin with their first character, whether they end with the last).

    Only one alone may be in parts.
    """
    contents = memoryview(output.data).cast("B")
    texts: list[str] = []
    position = count = size = 0
    while position < len(contents):
        start = position + BYTES_PREFIX_SIZE
        position = start + string_length(output.name, contents, position, count)
        length = position - start
        try:
            if length > STRING_BYTES:
                if texts:
                    yield texts, True, True
                    texts, size = [], 0
                yield from _parts(contents[start:position])
            else:
                texts.append(str(contents[start:position], "utf-8"))
                size += length
        except UnicodeDecodeError:
            raise StringError(output.name, count) from None
        count += 1
        if len(texts) == SLICE_ELEMENTS or size >= PIECE_BYTES:
            yield texts, True, True
            texts, size = [], 0
    if count != math.prod(output.shape):
        raise wrong_count(output, count)
    if texts:
        yield texts, True, True


def _parts(contents: memoryview) -> Iterator[tuple[list[str], bool, bool]]:
    """The parts of a long string."""
    decode = codecs.getincrementaldecoder("utf-8")().decode
    for at in range(0, len(contents), STRING_BYTES):
        is_last = at + STRING_BYTES >= len(contents)
        yield [decode(contents[at : at + STRING_BYTES], is_last)], not at, is_last

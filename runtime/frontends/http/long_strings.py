# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Long strings of a JSON document, cut out of it before it is parsed. (pure)

An image or a file in base64 is one string. The parser decodes a string in one piece, in which no other thread runs, so
long ones are replaced by short ones and decoded piece by piece where they are needed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pyruntime.runtime.frontends.common.json_document import STRING, invalid, parse_string, string_end
from pyruntime.runtime.frontends.http.json_tensors import PackedElements, pack_long_string, pack_string, string_pieces
from pyruntime.runtime.json_types import JsonValue
from pyruntime.utils.dtypes import BYTES_PREFIX_SIZE

# A longer string, in bytes of the document, is cut out.
LONG_BYTES = 64 << 10
# The most bytes of a document without the strings that are cut out: it is parsed in one piece, which takes some 70 ms
# if its characters take 4 bytes each.
REST_BYTES_MAX = 16 << 20
# The most bytes of a long string that becomes text, and no tensor.
TEXT_BYTES_MAX = 16 << 20

_TOKENS = re.compile(rb'(?:[^"]++|%b)*+' % STRING, re.DOTALL)
_MEMBER = re.compile(rb"\s*+:")
# Begins what replaces a string. No client can guess it.
_MARK = secrets.token_hex(16)

Text = bytes | bytearray


class _Span(NamedTuple):
    """The contents of a string, without its quotes."""

    start: int
    end: int


class LongStrings:
    """The long strings of `text`, which must not change. `rest` is the document with marks in their places.

    Raises InferenceError (INVALID_ARG) if that is too long. Strings of more than `long_bytes` are long, LONG_BYTES by
    default.
    """

    def __init__(self, text: Text, long_bytes: int = 0) -> None:
        self._text = text
        self._long_bytes = long_bytes or LONG_BYTES
        self._spans: list[_Span] = []
        self.rest: Text = text
        if len(text) > self._long_bytes:
            self._cut()
        if len(self.rest) > REST_BYTES_MAX:
            raise invalid(
                f"the request's document has more than {REST_BYTES_MAX} bytes, not counting strings of more than "
                f"{self._long_bytes}"
            )

    def __repr__(self) -> str:
        return f"<LongStrings [{len(self._spans)}]>"

    @property
    def bytes(self) -> int:
        """How long they are in the document."""
        return sum(end - start for start, end in self._spans)

    def _cut(self) -> None:
        text, at, kept = self._text, 0, 0
        parts: list[Text] = []
        while at < len(text):
            found = _TOKENS.match(text, at, at + self._long_bytes)
            assert found is not None  # it matches the empty string as well
            if found.end() > at:
                at = found.end()
                continue
            end = string_end(text, at + 1)
            if end < len(text) and _MEMBER.match(text, end + 1) is None:  # not the name of a member
                parts += [text[kept:at], b'"%b%d"' % (_MARK.encode(), len(self._spans))]
                self._spans.append(_Span(at + 1, end))
                kept = end + 1
            at = end + 1
        if parts:
            self.rest = b"".join([*parts, text[kept:]])

    def _find(self, value: object) -> _Span | None:
        if type(value) is str and value.startswith(_MARK):
            return self._spans[int(value[len(_MARK) :])]
        return None

    def pieces(self, value: object) -> Iterator[str] | None:
        """The string that was cut out for `value`, decoded piece by piece; None if none was. They may raise, too."""
        span = self._find(value)
        return None if span is None else string_pieces(self._text, *span)

    def overwrite(self, value: object, parts: Iterable[Text]) -> memoryview:
        """Write `parts` in the place of the string that was cut out for `value`, so that they take no other memory.

        The document must be a bytearray. The parts are made of the pieces of that string, and are no longer than these.
        """
        span = self._find(value)
        assert span is not None  # it has pieces
        view, at = memoryview(self._text), span.start
        for part in parts:
            view[at : at + len(part)] = part
            at += len(part)
        return view[span.start : at]

    def restored(self, value: JsonValue) -> JsonValue:
        """`value`, of the parsed document, with the strings that were cut out of it.

        Raises InferenceError (INVALID_ARG) if one of them is too long for a text.
        """
        if not self._spans:
            return value
        if type(value) is list:
            return [self.restored(each) for each in value]
        if type(value) is dict:
            return {name: self.restored(each) for name, each in value.items()}
        span = self._find(value)
        if span is None:
            return value
        if span.end - span.start > TEXT_BYTES_MAX:
            raise invalid(f"a string that is no input has more than {TEXT_BYTES_MAX} bytes")
        return parse_string(self._text[span.start : span.end], span.start)

    def packed(self, name: str, datatype: str, elements: list[object]) -> PackedElements | list[object]:
        """The tensor bytes of `elements` of input `name` if one of them was cut out; else they are left as they are."""
        spans = [self._find(each) for each in elements] if self._spans else []
        if not any(spans):
            return elements
        size = BYTES_PREFIX_SIZE * len(elements) + sum(span.end - span.start for span in spans if span is not None)
        size += sum(len(each.encode()) for each in elements if type(each) is str and self._find(each) is None)
        contents, at = memoryview(bytearray(size)), 0
        for each, span in zip(elements, spans, strict=True):
            if span is None:
                at += pack_string(name, datatype, each, contents[at:])
            else:
                at += pack_long_string(name, datatype, self._text, *span, contents[at:])
        return PackedElements(contents[:at], len(elements), -1)

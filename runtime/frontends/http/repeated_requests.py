# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP requests that a model's response cache may answer by their bytes: see caching/answers.py.

Such an answer is a whole response. It depends on the model, on the body, on how long the document in it is, and on the
encoding of the response. Whatever else may be in a head and makes a difference has the request decoded.
"""

from __future__ import annotations

import re
from collections.abc import Hashable

import orjson

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.caching.answers import REQUEST_BYTES_MAX, Repeatable
from pyruntime.runtime.frontends.http.request_head import Head
from pyruntime.runtime.frontends.http.response_head import infer_head
from pyruntime.runtime.inference.intake import ID_LENGTH_MAX
from pyruntime.utils.errors import InferenceError

# The beginning of a document with an id that may be cut out.
_ID = b'{"id"'
_ID_NAME = b'"id"'
# An id as clients write it: at the beginning, and before another member. No JSON string has bytes below 0x20.
_CUT_OUT = re.compile(rb'\{"id": ?"([^"\\\x00-\x1f]*)", ?(?=")')


class RepeatedResponse:
    """An answer: see caching.lru.Answer. Its body is that of a request without an id.

    `document_length` is the length of the document in it, in bytes, 0 if it is nothing else.
    """

    __slots__ = ("_document_length", "_members_at", "_whole")

    def __init__(self, document_length: int, body: bytes, encoding: str) -> None:
        head = infer_head(document_length, len(body), encoding=encoding)
        self._document_length = document_length
        self._whole = head + body
        self._members_at = len(head) + 1

    def parts(self, id: str) -> list[bytes | memoryview]:
        """See Answer."""
        whole, document_length = self._whole, self._document_length
        if not id:
            return [whole]
        begin = b'{"id":%b,' % orjson.dumps(id)
        members = memoryview(whole)[self._members_at :]
        added = len(begin) - 1
        head = infer_head(document_length and document_length + added, len(begin) + len(members))
        return [head, begin, members]


def without_id(document_length: int, body: bytes, id: str) -> tuple[int, bytes]:
    """The length of the document in a body, and the body, of the same response without its id."""
    if not id:
        return document_length, body
    cut = len(b'{"id":%b,' % orjson.dumps(id)) - 1
    return document_length and document_length - cut, b"{" + body[cut + 1 :]


def repeatable(state: ServerState, head: Head, body: bytes | bytearray) -> Repeatable | None:
    """What an equal request is known by; None if its answer depends on more.

    A trace has the whole way of a request. Forwarded headers may be refused, and a load report, or the announcement
    that the connection ends, is not in each response. `body` is decompressed.
    """
    if len(body) > REQUEST_BYTES_MAX or not head.keep_alive or state.tracer.active:
        return None
    if head.forwarded or head.load_format:
        return None
    key, id = _split(head, bytes(body))
    return None if len(id) > ID_LENGTH_MAX else Repeatable(key, id, len(body))


def find_answer(state: ServerState, head: Head, body: bytes) -> list[bytes | memoryview] | None:
    """The parts of the answer to a request with a head that had a prepared answer before; None if there is none.

    The body came as a whole, and not compressed. An answer must be sent: it counts as a hit.
    """
    if state.tracer.active or state.log_settings.verbose:
        return None
    try:
        model = state.resolve(head.route.model, head.route.version)
    except InferenceError:
        return None  # an exchange reports it
    if model.answers is None:
        return None
    if not body.startswith(_ID):
        answer = model.answers.find((head.header_length, head.response_encoding, body))
        return None if answer is None else answer.parts("")
    key, id = _split(head, body)
    answer = None if len(id) > ID_LENGTH_MAX else model.answers.find(key)
    return None if answer is None else answer.parts(id)


def _cut_id(data: bytes, length: int) -> tuple[str, int] | None:
    """The id in a document, which is the first `length` bytes of `data`, and where the members behind it begin.

    It is cut out by its text, without parsing the document. None for a document whose id is not at its beginning, or
    may be another one, because something is escaped or occurs twice.
    """
    found = _CUT_OUT.match(data, 0, length)
    if found is None or data.find(b"\\", 0, length) >= 0 or data.find(_ID_NAME, found.end(), length) >= 0:
        return None
    try:
        return found[1].decode(), found.end()
    except UnicodeDecodeError:
        return None  # an error, which the parser reports


def _split(head: Head, body: bytes) -> tuple[Hashable, str]:
    """All that the answer depends on besides the model and the id; and the id, "" if that is a part of the former.

    An id cannot be put into a response that is compressed.
    """
    length, encoding = head.header_length, head.response_encoding
    cut = None if encoding else _cut_id(body, len(body) if length is None else length)
    if cut is None:
        return (length, encoding, body), ""
    id, at = cut
    return (None if length is None else length - at, "id", body[at:]), id

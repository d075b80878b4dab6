# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that a model's response cache may answer by their messages: see caching/answers.py."""

from __future__ import annotations

from collections.abc import Hashable

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.caching.answers import REQUEST_BYTES_MAX
from pyruntime.runtime.frontends.grpc.head import CallHead
from pyruntime.runtime.frontends.grpc.infer_response import Parts, encode_id
from pyruntime.runtime.inference.intake import ID_LENGTH_MAX
from pyruntime.runtime.native._http2 import split
from pyruntime.runtime.native.plain import read_target
from pyruntime.utils.arena import ALIGNMENT
from pyruntime.utils.errors import InferenceError


class RepeatedResponse:
    """An answer: see caching.lru.Answer. `parts` are those of a message; its id stands behind the first of them."""

    __slots__ = ("_id_at", "_message")

    def __init__(self, parts: Parts) -> None:
        self._message = b"".join(parts)
        self._id_at = len(parts[0])

    def parts(self, id: str) -> Parts:
        """See Answer."""
        message, at = self._message, self._id_at
        return [message[:at], encode_id(id), memoryview(message)[at:]] if id else [message]


def is_repeatable(state: ServerState, head: CallHead, id: str, size: int) -> bool:
    """Whether the answer to a request with a message of `size` bytes depends on nothing but that and the model.

    A trace has the whole way of a request, and forwarded metadata may be refused. The answer has an end without a load
    report, and is not compressed.
    """
    if size > REQUEST_BYTES_MAX or len(id) > ID_LENGTH_MAX or state.tracer.active:
        return False
    return not (head.forwarded or head.load_format or state.settings.grpc_compression_level != "none")


def request_key(message: bytes) -> Hashable | None:
    """All of a request but its id; None for one with typed contents, or one that cannot be read."""
    try:
        parts = split(message, ALIGNMENT)
    except ValueError:
        return None  # the call reports it
    if parts is None or parts[4]:
        return None
    key, _, raws, _, _ = parts
    return key, tuple([message[at : at + length] for at, length in raws])


def find_answer(state: ServerState, message: bytes) -> Parts | None:
    """The parts of the answer to a request with a head that had a prepared answer before; None if there is none.

    An answer must be sent: it counts as a hit.
    """
    if len(message) > REQUEST_BYTES_MAX or state.tracer.active or state.log_settings.verbose:
        return None
    target = read_target(message)
    if target is None:
        return None
    name, version, id, _ = target
    try:
        answers = state.resolve(name, version).answers
    except InferenceError:
        return None  # a call reports it
    key = None if answers is None else request_key(message)
    if answers is None or key is None:
        return None
    answer = answers.find(key)
    return None if answer is None else answer.parts(id)

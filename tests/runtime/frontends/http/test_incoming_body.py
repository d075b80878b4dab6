# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Bodies that come in over several reads, with an exchange that notes them and has memory in parts."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.frontends.http.incoming_body import IncomingBody


class NotingExchange:
    """Gives memory in parts of the given sizes, and notes what it takes otherwise."""

    def __init__(self, *parts):
        self.memory = [bytearray(size) for size in parts]
        self._unused = list(self.memory)
        self.taken = b""
        self.asked = []
        self.has_room = True

    def direct_body(self):
        return self.more_direct() if self._unused else None

    def more_direct(self):
        return memoryview(self._unused.pop(0)) if self._unused else None

    def admit(self, nbytes):
        self.asked.append(nbytes)
        return self.has_room

    def take(self, data):
        self.taken += data


def incoming(exchange, length=0, chunked=False):
    body = IncomingBody(exchange, SimpleNamespace(chunked=chunked, content_length=length))
    body.seek_memory()
    return body


def test_pieces():
    """A body without memory of its own is taken piece by piece; the rest is the next request's."""
    exchange = NotingExchange()
    body = incoming(exchange, 10)
    assert body.take(b"0123") == b""
    assert not body.is_complete
    assert body.admits(100)
    assert exchange.asked == [6]
    assert body.take(b"456789GET /") == b"GET /"
    assert body.is_complete
    assert exchange.taken == b"0123456789"


def test_chunks():
    exchange = NotingExchange()
    body = incoming(exchange, chunked=True)
    assert body.take(b"4\r\n0123\r\n") == b""
    assert body.admits(100)
    assert exchange.asked == [100]
    assert body.progress == 9
    assert not body.is_complete
    assert body.take(b"0\r\n\r\nGET /") == b"GET /"
    assert body.is_complete
    assert exchange.taken == b"0123"


def test_no_more_memory():
    """When there is no memory for the next part, the exchange takes the rest, and may discard it."""
    exchange = NotingExchange(4)
    body = incoming(exchange, 10)
    assert body.admits(100)
    assert exchange.asked == []
    assert body.take(b"0123456") == b"456"
    assert body.direct is None
    assert not body.is_complete
    assert body.take(b"456789") == b""
    assert body.is_complete
    assert (exchange.memory, exchange.taken) == ([b"0123"], b"456789")


@given(st.lists(st.integers(1, 20), min_size=1), st.data())
def test_memory(parts, data):
    """All bytes are in the memory, in their order, whether the socket puts them there or a read brings them."""
    exchange = NotingExchange(*parts)
    sent = bytes(range(256))[: sum(parts)] if sum(parts) < 256 else bytes(sum(parts))
    body = incoming(exchange, len(sent))
    at, before = 0, body.progress
    while not body.is_complete:
        size = data.draw(st.integers(1, min(len(sent) - at, len(body.direct))))
        if data.draw(st.booleans()):
            body.direct[:size] = sent[at : at + size]
            body.fill(size)
        else:
            piece = sent[at : at + size]
            assert body.take(piece) == b""
        at += size
        assert body.progress == before + size
        before = body.progress
    assert at == len(sent)
    assert b"".join(exchange.memory) == sent
    assert exchange.taken == b""


@pytest.mark.parametrize("chunked", [False, True])
def test_repr(chunked):
    """A body shows how far it has come."""
    assert repr(incoming(NotingExchange(), chunked=chunked)) == "<IncomingBody [0]>"

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Any frames, with any messages in them, in any pieces, over a connection that notes what is written.

No state of a client is left when it is gone. Input that is almost valid is in tests/corpus/grpc, and is always tried.
"""

import gzip
from pathlib import Path

import hpack
import pytest
from hyperframe.frame import (
    DataFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from pyruntime.runtime.frontends.grpc.connection import GrpcConnection
from pyruntime.runtime.frontends.grpc.head import HeadReader
from pyruntime.runtime.frontends.grpc.unpacking import LARGE_BYTES

CORPUS = Path(__file__).parents[3] / "corpus" / "grpc"
CASES = sorted(CORPUS.iterdir())

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame(0).serialize()
PATHS = ["ModelInfer", "ModelStreamInfer", "ServerLive", "ServerReady", "Nothing"]
EXTRA = [{}, {"grpc-encoding": "gzip"}, {"grpc-timeout": "1S"}, {"grpc-timeout": "x"}, {"triton_grpc_error": "true"}]


def make(model, size, **fields):
    message = service_pb2.ModelInferRequest(model_name=model, **fields)
    message.inputs.add(name="IN", datatype="FP32", shape=[size])
    message.raw_input_contents.append(bytes(4 * size))
    return message.SerializeToString()


MESSAGES = [
    b"",
    make("m", 1),
    make("m", 3, id="7"),
    make("d", 1),
    make("nobody", 1),
    make("m", LARGE_BYTES // 4 + 9),
    make("d", LARGE_BYTES // 4 + 9),
    make("m", 1) + make("d", LARGE_BYTES // 4),
    make("m", LARGE_BYTES // 4) + make("d", 1),
]
LENGTHS = [0, 1, 5, 100, 70_000, 1 << 20, 2**31 - 1, 2**31, 2**32 - 1]


def framed(message, flag=0, length=None):
    return bytes([flag]) + (len(message) if length is None else length).to_bytes(4, "big") + message


def head(stream, path, extra, ended):
    encoder = hpack.Encoder()
    fields = {":method": "POST", ":scheme": "http", ":path": f"/inference.GRPCInferenceService/{path}", **extra}
    block = encoder.encode(list({**fields, "content-type": "application/grpc"}.items()))
    return HeadersFrame(stream, block, flags=["END_HEADERS", *["END_STREAM"] * ended]).serialize()


def data(stream, content, ended):
    frames = [content[at : at + 16384] for at in range(0, len(content), 16384)] or [b""]
    parts = [DataFrame(stream, part).serialize() for part in frames[:-1]]
    return b"".join([*parts, DataFrame(stream, frames[-1], flags=["END_STREAM"] * ended).serialize()])


STREAMS = st.sampled_from([1, 3, 5, 7])
CONTENTS = st.one_of(
    st.sampled_from(MESSAGES).map(framed),
    st.sampled_from(MESSAGES).map(lambda message: framed(gzip.compress(message), 1)),
    st.builds(framed, st.sampled_from(MESSAGES), st.integers(0, 2), st.sampled_from(LENGTHS)),
    st.builds(lambda message, cut: framed(message)[:cut], st.sampled_from(MESSAGES), st.integers(0, 300)),
    st.binary(max_size=40),
)
FRAMES = st.one_of(
    st.builds(head, STREAMS, st.sampled_from(PATHS), st.sampled_from(EXTRA), st.booleans()),
    st.builds(data, STREAMS, CONTENTS, st.booleans()),
    st.builds(lambda stream, code: RstStreamFrame(stream, code).serialize(), STREAMS, st.integers(0, 13)),
    st.builds(lambda stream, size: WindowUpdateFrame(stream, size).serialize(), STREAMS, st.integers(1, 2**31 - 1)),
    st.just(PingFrame(0, b"12345678").serialize()),
    st.builds(lambda size: SettingsFrame(0, settings={4: size}).serialize(), st.sampled_from([0, 1, 2**31 - 1])),
    st.binary(max_size=30),
)
# Calls in their order, so that most of what follows is about some that there are.
CONVERSATIONS = st.builds(
    lambda kinds, frames: [head(2 * n + 1, path, extra, False) for n, (path, extra) in enumerate(kinds)] + frames,
    st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from(EXTRA)), min_size=1, max_size=4),
    st.lists(FRAMES, max_size=10),
)


def check_connection(server, make_transport, loop, pieces, waits=False):
    """One client sends these pieces, models answer, and it leaves."""
    server.instance.waits = waits
    transport = make_transport(GrpcConnection(server.state, server.connections, HeadReader().read))
    transport.feed(PREFACE)
    for piece in pieces:
        transport.feed(piece)
        loop.turn()
    server.instance.answer()
    while server.decoupled.jobs:
        server.decoupled.say(1.0)
        server.decoupled.say(None, final=True)
    loop.turn()
    transport.lose()
    while loop.turn():
        pass
    server.instance.waits = False
    assert server.is_idle()
    assert server.state.intake.expected_bytes == 0
    assert server.state.pending_bytes.used == 0
    assert not server.connections
    assert not loop.timers, "a timer outlives its connection"


@pytest.fixture
def check(server, dial, loop):
    """Checks what comes of pieces."""
    peer = dial()
    peer.hang_up()
    make_transport = type(peer.transport)
    return lambda pieces, waits=False: check_connection(server, make_transport, loop, pieces, waits)


@pytest.mark.parametrize("path", CASES, ids=[path.name for path in CASES])
def test_corpus(check, path):
    """Each in one piece, in small ones, and cut in the middle."""
    content = path.read_bytes()
    for waits in (False, True):
        check([content], waits)
        step = max(1, len(content) // 2000)
        check([content[at : at + step] for at in range(0, len(content), step)], waits)
        check([content[: len(content) // 2], content[len(content) // 2 :]], waits)


def test_any_frames(check):
    """Frames that are close to gRPC, and frames that are not."""

    @settings(max_examples=5 * settings.default.max_examples)
    @given(CONVERSATIONS, st.booleans())
    def converse(frames, waits):
        check(frames, waits)

    converse()


def test_any_pieces(check):
    """The same, wherever it is cut."""

    @settings(max_examples=3 * settings.default.max_examples // 2)
    @given(CONVERSATIONS, st.lists(st.integers(0, 400), max_size=8))
    def converse(frames, cuts):
        text = b"".join(frames)
        ends = [*sorted(cuts), len(text)]
        check([text[start:end] for start, end in zip([0, *ends], ends, strict=False)])

    converse()

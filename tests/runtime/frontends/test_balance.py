# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever clients send, and however requests end, nothing of them stays: no turn, no pending byte, no memory.

The frontends are real, over connections without a network; threads take their steps in turns of a loop of the test.
"""

import asyncio
import gzip
import json
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tritonclient.grpc import service_pb2

from pyruntime.runtime.config.inputs import STRINGS_AT_ONCE_BYTES_MAX
from pyruntime.runtime.frontends.grpc.unpacking import LARGE_BYTES
from pyruntime.runtime.frontends.http import write_stall
from pyruntime.runtime.frontends.http.infer_exchange import COPIED_AT_ONCE_MAX
from pyruntime.runtime.inference import pending_bytes
from pyruntime.runtime.inference.pending_bytes import PendingBytes
from pyruntime.runtime.inference.threads import PARSED_AT_ONCE_MAX, THREADS_MAX
from pyruntime.runtime.rounds import Rounds

from .conftest import CONFIG, Server
from .grpc.conftest import Loop, Peer, Tasks

MIB = 1 << 20
INPUT_BYTES_MAX = 8 * MIB
# Small enough for requests that wait for room, or find none.
BUDGET = 12 * MIB
STRINGS = CONFIG.replace("'m'", "'s'").replace("FP32", "STRING")
BLANKS = 3 * MIB


def document(model, values, blanks=0, **more):
    """The document of a request with these numbers."""
    if model == "generate":
        text = json.dumps({"IN": values, **more})
    else:
        text = json.dumps(
            {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [len(values)], "data": values}], **more}
        )
    return text.encode() + b" " * blanks


def binary(size, datatype="FP32", count=None):
    """(the header of a request with zeros, its whole body)."""
    tensor = {"name": "IN", "datatype": datatype, "shape": [size // 4 if count is None else count]}
    header = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": size}}]}).encode()
    return header, header + bytes(size)


def post(path, body, encoding="", lead=None):
    """A request as bytes."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
    lines += [f"Content-Encoding: {encoding}"] * bool(encoding)
    lines += [f"Inference-Header-Content-Length: {lead}"] * (lead is not None)
    return "\r\n".join([*lines, "", ""]).encode() + body


def _requests():
    """Requests of HTTP, by their kind."""
    many = [1.5] * (PARSED_AT_ONCE_MAX // 2)
    large, strings = binary(2 * COPIED_AT_ONCE_MAX), binary(2 * STRINGS_AT_ONCE_BYTES_MAX, "BYTES")
    wrong = binary(2 * STRINGS_AT_ONCE_BYTES_MAX, "BYTES", 2 * STRINGS_AT_ONCE_BYTES_MAX)
    infer, generate = "/v2/models/m/infer", "/v2/models/m/generate"
    texts = {
        "small": (infer, document("m", [1.0])),
        "large": (infer, document("m", many)),
        "blanks": (infer, document("m", [1.0], BLANKS)),
        "wrong element": (infer, document("m", [*many, "x"])),
        "no document": (infer, b"{" * PARSED_AT_ONCE_MAX * 2),
        "too large": (infer, b" " * (INPUT_BYTES_MAX + 1)),
        "nobody's": ("/v2/models/nobody/infer", document("m", many)),
        "generate": (generate, document("generate", many)),
        "generate, wrong": (generate, document("generate", [*many, "x"])),
        "generate, blanks": (generate, document("generate", [1.0], BLANKS)),
        "generate_stream": (generate + "_stream", document("generate", many)),
        "settings": ("/v2/logging", b" " * 60_000 + b"{}"),
        "long settings": ("/v2/logging", b" " * BLANKS),
    }
    bodies = {
        "binary": (infer, *large),
        "binary, copied at once": (infer, *binary(COPIED_AT_ONCE_MAX // 2)),
        "strings": ("/v2/models/s/infer", *strings),
        "wrong strings": ("/v2/models/s/infer", *wrong),
    }
    found = {}
    for name, (path, text) in texts.items():
        found[name] = post(path, text)
        found[name + ", gzip"] = post(path, gzip.compress(text, 1), "gzip")
    for name, (path, header, body) in bodies.items():
        found[name] = post(path, body, lead=len(header))
        found[name + ", gzip"] = post(path, gzip.compress(body, 1), "gzip", len(header))
    found["damaged"] = post(infer, gzip.compress(large[1], 1)[:-9], "gzip")
    return found


def _ask(model, datatype, shape):
    request = service_pb2.ModelInferRequest(model_name=model)
    return request, request.inputs.add(name="IN", datatype=datatype, shape=shape)


def _messages():
    """Messages of gRPC with the flag of compression, by their kind."""
    found = {}
    for name, model, count in [("small", "m", 1), ("large", "m", LARGE_BYTES), ("nobody's", "n", 9)]:
        request, tensor = _ask(model, "FP32", [count])
        tensor.contents.fp32_contents.extend([0.0] * count)
        found[name + ", typed"] = request.SerializeToString()
        tensor.ClearField("contents")
        request.raw_input_contents.append(bytes(4 * count))
        found[name + ", raw"] = request.SerializeToString()
    request, tensor = _ask("m", "INT64", [1])
    tensor.contents.int64_contents.extend([0] * 50_000)
    found["numbers that grow"] = request.SerializeToString()
    for surplus in (0, 1):
        request, _ = _ask("s", "BYTES", [STRINGS_AT_ONCE_BYTES_MAX + surplus])
        request.raw_input_contents.append(bytes(4 * STRINGS_AT_ONCE_BYTES_MAX))
        found["strings" if not surplus else "wrong strings"] = request.SerializeToString()
    found["no request"] = b"\xff" * (LARGE_BYTES + 1)
    found["many inputs"] = b"\x2a\0" * 40_000
    both = {(name, 0): message for name, message in found.items()}
    both |= {(name, 1): gzip.compress(message, 1) for name, message in found.items()}
    both["damaged", 1] = gzip.compress(bytes(MIB), 1)[:-9]
    both["too large", 1] = gzip.compress(bytes(BUDGET), 1)
    return both


REQUESTS, MESSAGES = _requests(), _messages()
# How much of a request is sent. Most are sent whole.
SHARES = st.sampled_from([1, 1, 1, 0.9, 0.5])


class Balance(RuleBasedStateMachine):
    """Clients come, send whole requests or parts of them, and leave; models answer, or are gone."""

    def __init__(self):
        super().__init__()
        self.patches = pytest.MonkeyPatch()
        self.loop = Loop()
        self.patches.setattr(asyncio, "get_running_loop", lambda: self.loop)
        self.patches.setattr(write_stall, "call_later", lambda *_: SimpleNamespace(cancel=lambda: None))
        self.patches.setattr(write_stall, "unacknowledged", lambda transport: 0)
        self.patches.setattr(pending_bytes, "WAIT_S_MAX", 1.0)
        self.server = Server(INPUT_BYTES_MAX)
        self.state = state = self.server.state
        state.tasks = Tasks(self.loop)
        state.soon = self.loop.call_soon
        # The time of a turn is always over: what comes behind a request waits for the next one.
        state.rounds = Rounds(lambda: 0.0, self.loop.call_soon)
        state.pending_bytes = PendingBytes(BUDGET, state.turns)
        self.server.instance.waits = True
        self.models = self.server.model, self.server._serve("s", STRINGS, self.server.instance)
        self.http, self.peers, self.calls = [], [], []
        self.now = 0.0

    def teardown(self):
        """What is still to be done is done, what still arrives is given up: then nothing may be left."""
        try:
            self.finish()
            self.wait_too_long()
            for client in self.http:
                client.lose()
            for peer in self.peers:
                peer.hang_up()
            self.finish()
            assert self.state.in_flight == 0
            self.check_balanced()
        finally:
            self.server.memory.close()
            self.patches.undo()

    def finish(self):
        """Threads and models do all that there is to do."""
        while self.loop.turn() or self.server.instance.jobs:
            self.server.instance.answer()

    def check_balanced(self):
        """Nobody holds anything."""
        state = self.state
        assert (state.intake.expected_bytes, state.pending_bytes.used, self.server.memory.live) == (0, 0, 0)
        assert repr(state.turns) == f"<Turns: {THREADS_MAX} free, 0 wait>"
        assert repr(state.pending_bytes) == f"<PendingBytes 0 of {BUDGET}, 0 claims wait>"

    @rule(kind=st.sampled_from(sorted(REQUESTS)), share=SHARES, anew=st.booleans())
    def ask(self, kind, share, anew):
        """Over HTTP, on a new connection or behind other requests; maybe not to the end."""
        self.ask_now(kind, share, anew)

    def ask_now(self, kind, share=1, anew=True):
        """See ask."""
        if anew or not self.http:
            self.http.append(self.server.connect())
        client = self.http[-1]
        data = REQUESTS[kind]
        if not client.closed:
            client.feed(data[: int(share * len(data))])
        if share != 1:
            self.http.insert(0, self.http.pop())  # nothing that makes sense may follow

    @rule(
        kind=st.sampled_from(sorted(MESSAGES)),
        share=SHARES,
        stream=st.booleans(),
        new=st.booleans(),
    )
    def call(self, kind, share, stream, new):
        """Over gRPC: a call of one message, or the first of a stream."""
        self.call_now(kind, stream, share, new)

    def call_now(self, kind, stream, share=1, new=True):
        """See call."""
        if new or not self.peers:
            self.peers.append(Peer(self.server, self.loop, type(self.server.connect(_nobody))))
        peer = self.peers[-1]
        number = peer.call(peer.STREAM if stream else peer.INFER, ended=False, grpc_encoding="gzip")
        self._send(peer, number, kind, share, ended=not stream and share == 1)
        if share == 1:
            self.calls.append((peer, number, stream))

    @precondition(lambda self: any(stream for _, _, stream in self.calls))
    @rule(kind=st.sampled_from(sorted(MESSAGES)), data=st.data(), ended=st.booleans())
    def send(self, kind, data, ended):
        """One more message of a stream."""
        peer, number, _ = data.draw(st.sampled_from([call for call in self.calls if call[2]]))
        self._send(peer, number, kind, 1, ended)
        if ended:
            self.calls.remove((peer, number, True))

    def _send(self, peer, number, kind, share, ended):
        """Bytes that arrive within one turn of the loop, as far as the client's windows allow."""
        _, flag = kind
        message = bytes([flag]) + len(MESSAGES[kind]).to_bytes(4, "big") + MESSAGES[kind]
        message = message[: int(share * len(message))]
        while message and not peer[number].is_over and not peer.transport.closed:
            size = min(peer.h2.local_flow_control_window(number), peer.h2.max_outbound_frame_size, len(message))
            if not size:
                return
            peer.h2.send_data(number, message[:size], end_stream=ended and size == len(message))
            message = message[size:]
            peer.transport.feed(peer.h2.data_to_send())

    @rule(count=st.integers(1, 6))
    def work(self, count):
        """Threads go on by some steps."""
        for _ in range(count):
            self.loop.turn()

    @rule(count=st.integers(1, 3))
    def answer(self, count):
        """The model answers its first requests."""
        self.server.instance.answer(count)

    @precondition(lambda self: self.http)
    @rule(data=st.data())
    def leave(self, data):
        """A client of HTTP is gone."""
        client = data.draw(st.sampled_from(self.http))
        self.http.remove(client)
        client.lose()

    @precondition(lambda self: self.peers)
    @rule(data=st.data())
    def hang_up(self, data):
        """A client of gRPC is gone."""
        peer = data.draw(st.sampled_from(self.peers))
        self.peers.remove(peer)
        self.calls = [call for call in self.calls if call[0] is not peer]
        peer.hang_up()

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def cancel(self, data):
        """A call is cancelled, and its connection goes on."""
        call = data.draw(st.sampled_from(self.calls))
        self.calls.remove(call)
        peer, number, _ = call
        if not peer[number].is_over:
            peer.cancel(number)

    @rule(gone=st.booleans())
    def model_comes_and_goes(self, gone):
        """From here on nobody can be served, until the model is back."""
        self.server.instance.down = "it crashed" if gone else ""
        for model in self.models:
            model.review_instances()

    @rule()
    def wait_too_long(self):
        """What waits for room is refused."""
        for _ in range(2):
            self.now += 1.0
            self.state.pending_bytes.check(self.now)


def _nobody(state, connections):
    return Nobody()


class Nobody:
    """A connection for the type of its transport."""

    def connection_made(self, transport):
        """Nothing follows."""


@pytest.fixture
def balance():
    made = Balance()
    yield made
    made.teardown()


@pytest.mark.parametrize("kind", sorted(REQUESTS))
def test_answered_over_http(balance, kind):
    """When a request is answered it holds nothing any more, although its client stays."""
    balance.ask_now(kind)
    balance.finish()
    assert len(balance.http[0].statuses()) == 1
    balance.check_balanced()


@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("kind", sorted(REQUESTS))
def test_client_of_http_leaves(balance, kind, steps):
    """When its threads have ended their step, nothing is left of it."""
    balance.ask_now(kind)
    for _ in range(steps):
        balance.loop.turn()
    balance.http.pop().lose()
    balance.finish()
    balance.check_balanced()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", sorted(MESSAGES))
def test_answered_over_grpc(balance, kind, stream):
    """The same for messages."""
    balance.call_now(kind, stream)
    balance.finish()
    balance.peers[0].pump()
    answer = balance.peers[0][balance.calls[0][1]]
    assert answer.status is not None or (stream and answer.messages)
    balance.check_balanced()


Balance.TestCase.settings = settings(
    max_examples=settings.default.max_examples,
    stateful_step_count=25,
    suppress_health_check=list(HealthCheck),
    deadline=None,
    phases=[Phase.generate],
)
TestBalance = Balance.TestCase

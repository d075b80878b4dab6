# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Inferences that native code reads and answers: clients notice no difference.

Over transports that note written data, in front of an instance that reads plain requests on demand: see conftest.py.
"""

import gc
import gzip
import io
import json
import random
import weakref
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyruntime.runtime.frontends.http.connection import PIPELINED_MAX
from pyruntime.runtime.frontends.http.exchange import JOINED_BYTES_MAX
from pyruntime.runtime.frontends.http.lending import ALIKE_MIN
from pyruntime.runtime.frontends.http.plain_exchange import PLAIN_BYTES_MAX
from pyruntime.runtime.frontends.http.request_head import HeadReader
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.runtime.settings import Restriction, TraceSettings
from pyruntime.runtime.tracing.tracer import Tracer
from pyruntime.runtime.tracing.writer import TraceWriter
from pyruntime.utils.errors import Code, InferenceError


def document(count, **members):
    """The JSON of a request for so many elements, in binary."""
    tensor = {"name": "IN", "datatype": "FP32", "shape": [count], "parameters": {"binary_data_size": 4 * count}}
    return json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}, **members}).encode()


def post(body, lead, *lines, model="m"):
    """A request with a body whose document has `lead` bytes, and more lines in its head."""
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: x", *lines, f"Content-Length: {len(body)}"]
    if lead is not None:
        lines.append(f"Inference-Header-Content-Length: {lead}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def contents(values):
    return np.array(values, np.float32).tobytes()


def infer(*values, lines=(), **members):
    """A plain request, unless members or lines make another one of it."""
    header = document(len(values), **members)
    return post(header + contents(values), len(header), *lines)


def chunked(*values):
    """The same in chunks."""
    header = document(len(values))
    body = header + contents(values)
    lines = ["POST /v2/models/m/infer HTTP/1.1", "Host: x", "Transfer-Encoding: chunked"]
    lines.append(f"Inference-Header-Content-Length: {len(header)}")
    return "\r\n".join([*lines, "", ""]).encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def values_of(response):
    """The output in a binary response."""
    status, headers, body = response
    assert status == 200, body
    lead = int(headers["inference-header-content-length"])
    assert json.loads(body[:lead])["outputs"][0]["parameters"]["binary_data_size"] == len(body) - lead
    return np.frombuffer(body[lead:], np.float32).tolist()


def answer_all(server):
    """Have the instance answer until there is nothing left to answer."""
    while server.instance.jobs or server.instance.read():
        server.instance.answer()


def alike(server, transport=None, count=2, request=None):
    """Send so many requests that are alike; their connection."""
    transport = transport or server.connect()
    for _ in range(count):
        transport.feed(request or infer(1, 2))
        answer_all(server)
    return transport


@pytest.fixture
def reading(server):
    """A server whose instance reads plain requests, and answers when the test calls it."""
    server.read_plain()
    server.instance.waits = True
    return server


def is_clean(server):
    """Whether nothing of any request is left."""
    return server.is_idle() and not server.instance.jobs and not server.instance.contents


@pytest.fixture(scope="module", params=["told", "sent", "lent"])
def pair(request, shared):
    """Two servers: of one the instance reads plain requests, and may answer them itself, or even read connections."""
    plain, usual = type(shared)(), type(shared)()
    plain.read_plain()
    plain.instance.sends = request.param != "told"
    plain.instance.may_read = request.param == "lent"
    plain.instance.waits = usual.instance.waits = True
    yield plain, usual
    plain.memory.close()
    usual.memory.close()


def feed_both(pair, pieces):
    """The bytes that each of two servers sends to a client that sends these pieces."""
    sent = []
    for server in pair:
        rng = random.Random(0)
        server.instance.adopts = lambda rng=rng: rng.random() < 0.2
        transport = server.connect()
        for piece in pieces:
            transport.feed(piece)
            answer_all(server)
        sent.append(transport.sent)
        transport.lose()
        answer_all(server)
        assert is_clean(server)
    return sent


class TestAnswers:
    """Responses to plain requests."""

    @pytest.mark.parametrize("writes", [True, False])
    def test_the_same_as_ever(self, reading, writes):
        """Each is read, and answered in the words of native code, or of Python."""
        reading.instance.writes = writes
        transport = reading.connect()
        for number in range(6):
            transport.feed(infer(number, -number))
            assert reading.state.in_flight == 1
            answer_all(reading)
            assert is_clean(reading)
        responses = transport.responses()
        assert [values_of(each) for each in responses] == [[number, -number] for number in range(6)]
        assert len({str(headers) for _, headers, _ in responses}) == 1
        assert reading.instance.plain_count == 6
        assert len(reading.instance.contents) == 0
        assert reading.instance.released == (0 if writes else 6)  # what native code has written needs no release

    def test_pipelined(self, reading):
        """Many requests at a time are answered in order, whether they are plain or not."""
        transport = alike(reading)
        rng = random.Random(0)
        expected = [[1, 2], [1, 2]]
        stream = []
        for number in range(100):
            plain = rng.random() < 0.7
            shape = [number] * rng.randrange(1, 9)
            stream.append(infer(*shape, id=str(number)) if plain else infer(*shape, other="member"))
            expected.append(shape)
        transport.feed(b"".join(stream))
        assert reading.state.in_flight == PIPELINED_MAX
        answer_all(reading)
        assert [values_of(each) for each in transport.responses()] == expected
        assert 50 < reading.instance.plain_count - 2 < 90
        assert is_clean(reading)

    def test_answered_out_of_order(self, reading):
        """A response waits for those before it."""
        transport = alike(reading, count=4)
        before = len(transport.sent)
        transport.feed(infer(1, 1) + infer(2, 2) + infer(3, 3))
        first, second, third = reading.instance.jobs
        for job in (third, second, first):
            assert len(transport.sent) == before
            reading.instance.jobs[:] = [job]
            answer_all(reading)
        assert [values_of(each) for each in transport.responses()[4:]] == [[1, 1], [2, 2], [3, 3]]
        assert is_clean(reading)

    def test_before_a_stream(self, reading):
        """A stream behind a plain request begins when that one is answered, of which no native thread would tell."""
        reading.instance.sends = True
        transport = alike(reading, count=4)
        body = b'{"IN": 1}'
        stream = b"POST /v2/models/d/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
        transport.feed(infer(5, 6))
        transport.feed(stream % (len(body), body))
        assert reading.decoupled.jobs == []
        answer_all(reading)
        reading.decoupled.say(1, final=True)
        assert transport.statuses() == [200] * 6
        assert is_clean(reading)

    def test_in_pieces(self, reading):
        """A request is the same however it is cut, and nothing is in flight before all of it is there."""
        transport = alike(reading, count=3)
        request = infer(8, 9)
        for cut in range(1, len(request)):
            transport.feed(request[:cut])
            assert reading.state.in_flight == 0
            transport.feed(request[cut:])
            answer_all(reading)
            assert values_of(transport.responses()[-1]) == [8, 9]
            assert is_clean(reading)
        assert len(transport.responses()) == 3 + len(request) - 1

    def test_alternating(self, reading):
        """Requests differ in shape, id and head, and none is taken for another one."""
        transport = reading.connect()
        kinds = [infer(1), infer(1, 2), infer(1, 2, 3), infer(1, lines=["X-Client: other"], id="7")]
        for _ in range(5):
            for request in kinds:
                transport.feed(request)
                answer_all(reading)
        assert [values_of(each) for each in transport.responses()] == [[1], [1, 2], [1, 2, 3], [1]] * 5
        assert reading.instance.plain_count == 4 * 5
        assert is_clean(reading)

    def test_empty_tensors(self, reading):
        """A body may have nothing behind its document."""
        transport = alike(reading, count=5, request=infer())
        assert [body for _, _, body in transport.responses()] == [transport.responses()[0][2]] * 5

    def test_raw_requests_are_not_plain(self, reading):
        """They have no document."""
        transport = alike(reading, count=4, request=post(contents([1, 2]), 0))
        assert [values_of(each) for each in transport.responses()] == [[1, 2]] * 4
        assert reading.instance.plain_count == 0


REQUESTS = st.lists(
    st.sampled_from(
        [
            *[infer(1, 2)] * 4,
            infer(3, 4),
            infer(1, 2, 3),
            infer(*range(100)),
            infer(5, 6, lines=["X: y"]),
            infer(7, 8, id="1"),
            infer(7, 8, id='"'),
            infer(7, 8, parameters={"sequence_id": 7, "sequence_start": True, "binary_data_output": True}),
            infer(7, 8, parameters={"priority": 3, "own": "text", "binary_data_output": True}),
            infer(7, 8, parameters={"timeout": 1000, "binary_data_output": True}),
            infer(7, 8, parameters={"own": 0.5, "binary_data_output": True}),
            infer(7, 8, outputs=[{"name": "OUT", "parameters": {"binary_data": True}}]),
            infer(7, 8, outputs=[{"name": "OUT"}]),
            infer(7, 8, outputs=[{"name": "NONE", "parameters": {"binary_data": True}}]),
            infer(7, 8, lines=["Accept-Encoding: gzip"]),
            infer(1, 2, lines=["Expect: 100-continue"]),
            chunked(1, 2),
            post(b"{}", None),
            post(b"no JSON, but as long" + contents([1, 2]), 20),
            infer(1, 2)[:-4].replace(b"Content-Length: ", b"content-length: ", 1) + contents([9]),
            b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n",
        ]
    ),
    max_size=14,
)


@settings(max_examples=3 * settings.default.max_examples)
@given(REQUESTS, st.lists(st.integers(0, 5000), max_size=8))
def test_nobody_can_tell(pair, requests, cuts):
    """A server that reads plain requests sends the same bytes, for any sequence of requests in any pieces."""
    stream = b"".join(requests)
    cuts = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    first = [infer(*range(number)) for number in range(1, ALIKE_MIN + 1)]
    plain, usual = feed_both(pair, first + [stream[start:end] for start, end in pairwise(cuts)])
    assert plain == usual


class TestNotPlain:
    """Requests that native code leaves to Python."""

    @pytest.mark.parametrize(
        "other",
        [
            infer(1, 2, lines=["Accept-Encoding: gzip"]),
            infer(1, 2, lines=["Connection: close"]),
            infer(1, 2, lines=["Expect: 100-continue"]),
            infer(1, 2, parameters={"timeout": 1000, "binary_data_output": True}),
            infer(1, 2, parameters={"binary_data_output": False}),
            infer(1, 2, outputs=[{"name": "OUT", "parameters": {"classification": 1, "binary_data": True}}]),
            chunked(1, 2),
            post(b'{"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}]}', None),
        ],
        ids=["gzip", "close", "expect", "timeout", "json", "class", "chunked", "JSON"],
    )  # fmt: skip
    def test_others(self, reading, other):
        """Such a request is decoded and answered as ever."""
        transport = alike(reading, count=4)
        assert reading.instance.plain_count == 4
        transport.feed(other)
        answer_all(reading)
        assert reading.instance.plain_count == 4
        fresh = reading.connect()
        fresh.feed(other)
        answer_all(reading)
        assert transport.sent.endswith(fresh.sent)
        assert transport.statuses()[4:] == fresh.statuses() == [200]
        assert is_clean(reading)

    @pytest.mark.parametrize(
        "request_",
        [
            infer(1, 2, id="7"),
            infer(1, 2, lines=["X-Other: head"]),
            infer(1, 2, 3),
            infer(1, 2, lines=["Accept-Encoding: identity"]),
            infer(1, 2, lines=["Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]),
            infer(1, 2, parameters={"sequence_id": "a", "priority": 1, "own": 5, "binary_data_output": True}),
            infer(1, 2, outputs=[{"name": "OUT", "parameters": {"binary_data": True}}], parameters={}),
        ],
        ids=["id", "head", "size", "identity", "traceparent", "parameters", "outputs"],
    )
    def test_plain(self, reading, server, request_):
        """A request that native code can read is plain whatever came before it, and answered as ever."""
        transport = alike(reading, count=1, request=request_)
        assert reading.instance.plain_count == 1
        reading.instance.plain = None
        reading.model.serve([reading.instance])
        usual = alike(reading, count=1, request=request_)
        assert reading.instance.plain_count == 1
        assert transport.sent == usual.sent

    def test_a_limit_for_bodies_that_is_lower(self, shared):
        """A server that accepts shorter bodies than plain ones decides about each of them in Python."""
        made = type(shared)(16_000)
        made.read_plain()
        transport = made.connect()
        transport.feed(infer(*range(4000)))
        assert transport.statuses() == [400]
        assert made.instance.plain_count == 0
        made.memory.close()

    def test_a_connection_that_ends(self, reading):
        """Its request is not plain, and it ends as it should."""
        for _ in range(4):
            transport = alike(reading, count=1, request=infer(1, 2, lines=["Connection: close"]))
            assert transport.closed
        assert reading.instance.plain_count == 0

    def test_what_is_no_gzip(self, reading):
        """A body that is not compressed, though its head says so, is refused."""
        header = document(100)
        body = header + bytes(400)
        name = "x" * (len(body) - len(gzip.compress(body)) - 1)  # which makes it as long as it is without compression
        compressed = io.BytesIO()
        with gzip.GzipFile(name, "wb", fileobj=compressed) as file:
            file.write(body)
        assert len(compressed.getvalue()) == len(body)
        transport = alike(reading, count=4, request=post(compressed.getvalue(), len(header), "Content-Encoding: gzip"))
        transport.feed(post(body, len(header), "Content-Encoding: gzip"))
        assert transport.statuses() == [200] * 4 + [400]
        assert reading.instance.plain_count == 0

    def test_a_document_that_is_wrong(self, reading):
        """Python says what is wrong with it, and the next one is plain again."""
        transport = alike(reading, count=4)
        transport.feed(infer(1, 2).replace(b'"IN"', b'"NO"') + infer(3, 4))
        answer_all(reading)
        assert transport.statuses() == [200] * 4 + [400, 200]
        assert values_of(transport.responses()[-1]) == [3, 4]
        assert reading.instance.plain_count == 5

    def test_a_header_length_of_nothing(self, reading):
        """A document that is longer than its body is refused as usual."""
        transport = alike(reading, count=3)
        transport.feed(post(document(2) + contents([1, 2]), 1000))
        assert transport.statuses() == [200] * 3 + [400]

    def test_forwarded_headers(self, reading):
        """A request with headers that are forwarded to the model is not plain."""
        reading.read_head = HeadReader(pattern="X-.*").read
        transport = alike(reading, count=4, request=infer(1, 2, lines=["X-User: 1"]))
        assert transport.statuses() == [200] * 4
        assert reading.instance.plain_count == 0

    def test_headers_that_may_be_forwarded(self, reading):
        """A connection whose later requests may have such headers is never lent."""
        reading.read_head = HeadReader(pattern="X-.*").read
        reading.instance.may_read = reading.instance.sends = True
        alike(reading, count=3 * ALIKE_MIN)
        assert reading.instance.plain_count == 3 * ALIKE_MIN
        assert reading.instance.lent == []

    def test_restricted(self, reading):
        """Only requests with the header are served, and their connections are never lent."""
        reading.read_head = HeadReader({"inference": Restriction("key", "secret")}).read
        allowed = infer(1, 2, lines=["key: secret"])
        transport = alike(reading, count=4, request=allowed)
        transport.feed(infer(1, 2) + infer(1, 2, lines=["key: wrong"]) + allowed)
        answer_all(reading)
        assert transport.statuses() == [200] * 4 + [403] * 2 + [200]
        assert reading.instance.plain_count == 5
        reading.instance.may_read = reading.instance.sends = True
        alike(reading, transport, count=3 * ALIKE_MIN, request=allowed)
        assert reading.instance.lent == []

    def test_large(self, reading):
        """A large body goes to shared memory, as usual."""
        values = [1.5] * (PLAIN_BYTES_MAX // 4 + 1)
        transport = alike(reading, count=4, request=infer(*values))
        assert [values_of(each) for each in transport.responses()] == [values] * 4
        assert reading.instance.plain_count == 0

    def test_no_place(self, reading):
        """Without a place at an instance it waits in the queue, behind those that do."""
        transport = alike(reading, count=4)
        reading.instance.capacity = 0
        transport.feed(infer(3, 3) + infer(4, 4))
        assert len(reading.model.scheduler) == 2
        reading.instance.capacity = 1 << 30
        transport.feed(infer(5, 5))  # a new request must not overtake them
        assert len(reading.model.scheduler) == 0
        answer_all(reading)
        assert [values_of(each) for each in transport.responses()[4:]] == [[3, 3], [4, 4], [5, 5]]
        assert is_clean(reading)


class TestWatched:
    """Requests that are traced, logged or measured."""

    def test_traced(self, reading, monkeypatch):
        """From the moment on at which tracing is switched on, each request has its trace; and not when it is off."""
        traces = []
        monkeypatch.setattr(TraceWriter, "put", lambda self, write: traces.extend(write.traces))
        transport = alike(reading, count=4)
        usual = reading.state.tracer
        reading.trace_with(Tracer(TraceSettings(levels=("TIMESTAMPS",), rate=1, file="f"), "1", lambda name: True))
        alike(reading, transport)
        assert len(traces) == 2
        assert reading.instance.plain_count == 4
        reading.trace_with(usual)
        alike(reading, transport)
        assert len(traces) == 2
        assert reading.instance.plain_count == 6
        assert transport.statuses() == [200] * 8

    def test_traced_meanwhile(self, reading, monkeypatch):
        """A request that began without a trace is answered without one."""
        transport = alike(reading, count=3)
        transport.feed(infer(1, 2))
        reading.trace_with(Tracer(TraceSettings(levels=("TIMESTAMPS",), rate=1, file="f"), "1", lambda name: True))
        answer_all(reading)
        assert transport.statuses() == [200] * 4
        assert is_clean(reading)

    def test_logged(self, reading, caplog):
        """Each request has its line while lines are verbose."""
        caplog.set_level("DEBUG", "pyruntime")
        transport = alike(reading, count=4)
        reading.state.log_settings.verbose = True
        alike(reading, transport, 3)
        reading.state.log_settings.verbose = False
        alike(reading, transport)
        assert len([line for line in caplog.messages if "/v2/models/m/infer" in line]) == 3
        assert reading.instance.plain_count == 6
        assert transport.statuses() == [200] * 9


class TestModels:
    """Changes of a model while its requests are plain."""

    @pytest.fixture
    def another(self, reading):
        """Make another version of the model; its instance."""

        def another(version):
            instance = type(reading.instance)(reading.memory)
            instance.waits = True
            instance.plain = instance
            model = ModelVersion(reading.model.spec, version, reading.memory, lambda model, reason: None)
            model.serve([instance])
            reading.state.table.begin_load("m", version)
            reading.state.table.ready("m", version, model)
            return instance

        return another

    @pytest.mark.parametrize("version", [1, 2])
    def test_replaced(self, reading, another, version):
        """The new model version gets all later requests; the request under way is answered by the old one."""
        transport = alike(reading, count=4)
        transport.feed(infer(1, 1))
        other = another(version)
        transport.feed(infer(2, 2))
        assert [len(each.jobs) for each in (reading.instance, other)] == [1, 1]
        other.answer()
        answer_all(reading)
        for _ in range(3):
            transport.feed(infer(3, 3))
            assert reading.instance.jobs == []
            other.answer()
        assert other.plain_count == 4
        assert transport.statuses() == [200] * 9
        assert is_clean(reading)

    def test_unloaded(self, reading):
        """The model is not found any more, and requests under way are answered."""
        transport = alike(reading, count=4)
        transport.feed(infer(1, 1))
        reading.state.table.begin_unload("m", 1)
        transport.feed(infer(2, 2))
        reading.state.table.unloaded("m", 1)
        transport.feed(infer(3, 3))
        answer_all(reading)
        assert transport.statuses() == [200] * 5 + [404] * 2
        assert reading.instance.plain_count == 5
        assert is_clean(reading)

    def test_unloaded_while_a_body_comes_in(self, reading):
        """The request does not find the model when its body is complete."""
        transport = alike(reading, count=4)
        request = infer(1, 1)
        transport.feed(request[:-3])
        reading.state.table.begin_unload("m", 1)
        reading.state.table.unloaded("m", 1)
        transport.feed(request[-3:])
        answer_all(reading)
        assert transport.statuses() == [200] * 4 + [404]
        assert is_clean(reading)

    def test_exiting(self, reading):
        """A server that exits refuses new requests, and answers those under way."""
        transport = alike(reading, count=4)
        transport.feed(infer(1, 1))
        reading.state.exiting = True
        transport.feed(infer(2, 2))
        answer_all(reading)
        assert transport.statuses() == [200] * 5 + [503]
        assert json.loads(transport.responses()[-1][2]) == {"error": "Server exiting"}
        assert is_clean(reading)

    def test_models_have_their_own(self, reading):
        """The same body for another model is another request."""
        transport = alike(reading, count=4)
        transport.feed(infer(1, 2).replace(b"/models/m/", b"/models/d/"))
        assert transport.statuses() == [200] * 4 + [501]
        assert reading.decoupled.plain_count == 0


class TestClients:
    """Clients that leave while their requests are with native code."""

    @pytest.mark.parametrize("writes", [True, False])
    def test_lost(self, reading, writes):
        """The requests of a lost client are cancelled, once, and their responses are dropped."""
        reading.instance.writes = writes
        transport = alike(reading)
        transport.feed(infer(1, 1) + infer(2, 2))
        jobs = list(reading.instance.jobs)
        released = reading.instance.released
        transport.lose()
        assert reading.instance.cancelled == jobs
        assert reading.state.in_flight == 0
        answer_all(reading)
        assert is_clean(reading)
        assert reading.instance.released - released == (0 if writes else 2)
        assert len(transport.responses()) == 2

    def test_lost_with_an_answer(self, reading):
        """A request whose response waits for an earlier one is not cancelled when the client is lost."""
        transport = alike(reading, count=4)
        transport.feed(infer(1, 1) + infer(2, 2))
        first, second = reading.instance.jobs
        reading.instance.jobs[:] = [second]
        answer_all(reading)
        transport.lose()
        assert reading.instance.cancelled == [first]
        assert reading.state.in_flight == 0

    def test_fails_after_it_is_lost(self, reading):
        """A failure after the client was lost is dropped as well."""
        transport = alike(reading, count=4)
        transport.feed(infer(1, 1))
        transport.lose()
        self.fail(reading)
        assert is_clean(reading)

    def test_half_closed(self, reading):
        """A client that has finished sending is answered, and the instance gets the cancellation."""
        transport = alike(reading, count=4)
        transport.feed(infer(1, 1) + infer(2, 2))
        jobs = list(reading.instance.jobs)
        assert transport._connection.eof_received()
        assert reading.instance.cancelled == jobs
        answer_all(reading)
        responses = transport.responses()
        assert [values_of(each) for each in responses[4:]] == [[1, 1], [2, 2]]
        assert [headers.get("connection") for _, headers, _ in responses] == [None] * 5 + ["close"]
        assert transport.closed
        assert is_clean(reading)

    @pytest.mark.parametrize("writes", [True, False])
    def test_idle_connections_are_closed(self, reading, writes):
        """The response has the header `Connection: close`, byte for byte, whoever writes it."""
        reading.instance.writes = writes
        transport = alike(reading)
        before = len(transport.sent)
        transport.feed(infer(1, 2))
        transport._connection.close_idle()
        answer_all(reading)
        assert transport.closed
        alone = reading.connect()
        alone.feed(infer(1, 2, lines=["Connection: close"]))
        answer_all(reading)
        assert transport.sent[before:] == alone.sent
        assert is_clean(reading)

    def test_a_client_that_does_not_read(self, reading):
        """Its next requests wait in the socket."""
        transport = alike(reading, count=4)
        transport.stalled = True
        transport.feed(infer(1, 1))
        answer_all(reading)
        transport.feed(infer(2, 2))
        assert reading.instance.jobs == []
        transport.drain()
        answer_all(reading)
        assert [values_of(each) for each in transport.responses()[4:]] == [[1, 1], [2, 2]]
        assert is_clean(reading)

    def fail(self, server, message="no luck"):
        """Answer the first job with a failure."""
        job = server.instance.jobs.pop(0)
        server.instance.contents.pop(job)
        job.respond(InferenceError(message, Code.INTERNAL), True)

    @pytest.mark.parametrize("count", [2, 5])
    def test_failures(self, reading, count):
        """A failure is sent as usual, and does not affect the next request."""
        transport = alike(reading, count=count)
        transport.feed(infer(1, 2))
        self.fail(reading)
        assert transport.responses()[-1][::2] == (500, b'{"error":"no luck"}')
        alike(reading, transport)
        assert transport.statuses() == [200] * count + [500, 200, 200]
        assert is_clean(reading)

    def test_nothing_is_left(self, reading):
        """Of an exchange that is over, however it ended."""
        alike(reading)
        seen = []
        for end in ("answered", "encoded", "lost", "failed"):
            transport = reading.connect()
            transport.feed(infer(1, 2))
            seen.append(weakref.ref(reading.instance.jobs[0]))
            assert type(reading.instance.jobs[0]).__name__ == "PlainExchange"
            if end == "lost":
                transport.lose()
            if end == "failed":
                self.fail(reading)
            answer_all(reading)
        reading.instance.cancelled.clear()
        gc.collect()
        assert [each() for each in seen] == [None] * 4
        assert is_clean(reading)


def test_load_reports(reading):
    """Requests that ask for a load report are not plain, because each response has another one."""
    transport = alike(reading, count=4)
    before = reading.instance.plain_count
    for _ in range(3 * ALIKE_MIN):
        transport.feed(infer(1, 2, lines=["Endpoint-Load-Metrics-Format: text"]))
        answer_all(reading)
    assert reading.instance.plain_count == before
    for _, headers, _ in transport.responses()[4:]:
        assert headers["endpoint-load-metrics"].startswith("TEXT ")
    assert is_clean(reading)


class TestWords:
    """Responses that native code leaves to Python."""

    def respond(self, server, values, **options):
        """Answer the first job, which is plain, with these values."""
        job = server.instance.jobs.pop(0)
        server.instance.contents.pop(job)
        output = OutputTensor("OUT", "FP32", [len(values)], memoryview(contents(values)))
        job.respond(InferResponse("m", 1, job.id, [output], release=server.instance._release, **options), True)

    def test_parameters(self, reading):
        """Parameters of a response are in its document, and so is the id."""
        transport = reading.connect()
        transport.feed(infer(1, 2, id="7"))
        self.respond(reading, [5, 6], parameters={"a": 1})
        _, headers, body = transport.responses()[-1]
        document = json.loads(body[: int(headers["inference-header-content-length"])])
        assert (document["parameters"], document["id"]) == ({"a": 1}, "7")

    def test_large(self, reading):
        """A large response is sent from where it lies."""
        transport = reading.connect()
        values = [1.0] * (JOINED_BYTES_MAX // 4)
        transport.feed(infer(1, 2))
        self.respond(reading, values)
        assert values_of(transport.responses()[-1]) == values
        assert reading.instance.released == 1

    def test_no_output(self, reading):
        """A response without binary outputs is all document."""
        transport = reading.connect()
        transport.feed(infer(1, 2))
        job = reading.instance.jobs.pop(0)
        reading.instance.contents.pop(job)
        job.respond(InferResponse("m", 1, "", []), True)
        assert "inference-header-content-length" not in transport.responses()[-1][1]


class TestSent:
    """Responses that instances send themselves, about which the connection learns later."""

    @pytest.fixture
    def sending(self, reading):
        """A server whose instance does so."""
        reading.instance.sends = True
        return reading

    def test_alone(self, sending):
        """The client has it, and the next request finds its predecessor gone."""
        transport = alike(sending, count=3)
        for turn in range(3):
            transport.feed(infer(turn, 7))
            sending.instance.answer()
            assert values_of(transport.responses()[-1]) == [turn, 7]
            assert len(sending.instance.untold) == 1
        sending.state.settle()
        assert is_clean(sending)

    def test_before_another(self, sending):
        """The connection answers a request with another behind it, so that the latter need not wait."""
        transport = alike(sending, count=3)
        transport.feed(infer(1, 7))
        transport.feed(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        sending.instance.answer()
        assert sending.instance.untold == []
        assert transport.statuses() == [200] * 5
        assert is_clean(sending)

    def test_with_another(self, sending):
        """The connection answers, too, if both requests arrive at once."""
        transport = alike(sending, count=3)
        transport.feed(infer(1, 7) + b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        sending.instance.answer()
        assert sending.instance.untold == []
        assert transport.statuses() == [200] * 5
        assert is_clean(sending)

    def test_behind_another(self, sending):
        """The connection answers a request that is not the only one."""
        transport = alike(sending, count=3)
        transport.feed(infer(1, 7))
        transport.feed(infer(2, 7))
        answer_all(sending)
        assert sending.instance.untold == []
        assert [values_of(response) for response in transport.responses()[-2:]] == [[1, 7], [2, 7]]

    @pytest.mark.parametrize("end", ["eof_received", "close_idle"])
    @pytest.mark.parametrize("answered", [False, True])
    def test_the_last_one(self, sending, end, answered):
        """The connection ends with it, and says so if it can."""
        transport = alike(sending, count=3)
        transport.feed(infer(1, 7))
        if answered:
            sending.instance.answer()
        goes_on = getattr(transport._connection, end)()
        if not answered:
            assert not transport.closed
            sending.instance.answer()
            assert transport.responses()[-1][1]["connection"] == "close"
        assert values_of(transport.responses()[-1]) == [1, 7]
        assert transport.closed or goes_on is False
        assert is_clean(sending)

    def test_lost(self, sending):
        """A client that is lost after the answer leaves nothing behind."""
        transport = alike(sending, count=3)
        transport.feed(infer(1, 7))
        sending.instance.answer()
        transport.lose()
        assert is_clean(sending)

    def test_looked_after(self, sending):
        """A client that sends nothing more is idle, and not waiting for us."""
        transport = alike(sending, count=3)
        transport.feed(infer(1, 7))
        sending.instance.answer()
        transport._connection.check(0.0, False)
        assert is_clean(sending)

    def test_while_something_is_unsent(self, sending):
        """The connection answers while the transport has unsent data, so that the order is kept."""
        transport = alike(sending, count=3)
        transport.get_write_buffer_size = lambda: 1
        transport.feed(infer(1, 7))
        sending.instance.answer()
        assert sending.instance.untold == []
        assert values_of(transport.responses()[-1]) == [1, 7]

    def test_statistics_are_of_now(self, sending):
        """Reading statistics includes all responses that were sent."""
        transport = alike(sending, count=3)
        transport.feed(infer(1, 7))
        sending.instance.answer()
        sending.state.statistics("m")
        assert is_clean(sending)

    def test_no_descriptor(self, sending):
        """The connection answers if its socket's descriptor cannot be duplicated."""

        def fileno():
            raise OSError("too many")

        transport = sending.connect()
        transport.fileno = fileno
        alike(sending, transport, count=3)
        transport.feed(infer(1, 7))
        sending.instance.answer()
        assert sending.instance.untold == []
        assert values_of(transport.responses()[-1]) == [1, 7]

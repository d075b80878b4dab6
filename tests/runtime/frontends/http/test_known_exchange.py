# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Inferences that differ from earlier ones in nothing but contents: clients notice no difference.

Over transports that note written data, in front of an instance that finds known requests on demand: see conftest.py. A
request is known from the third one with the same head and the same document on.
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
from pyruntime.runtime.frontends.http.known_exchange import KNOWN_BYTES_MAX
from pyruntime.runtime.frontends.http.lending import ALIKE_MIN
from pyruntime.runtime.frontends.http.request_head import HeadReader
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.inference.request_plans import PLANS_KEPT_MAX, RequestPlans
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.runtime.settings import Restriction, TraceSettings
from pyruntime.runtime.tracing.tracer import Tracer
from pyruntime.runtime.tracing.writer import TraceWriter
from pyruntime.utils.errors import Code, InferenceError

# How many requests are alike before one is known.
UNKNOWN = 2


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
    """A request that may be known."""
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


def alike(server, transport=None, count=UNKNOWN, request=None):
    """Send as many requests as make the next one known; their connection."""
    transport = transport or server.connect()
    for _ in range(count):
        transport.feed(request or infer(1, 2))
        answer_all(server)
    return transport


@pytest.fixture
def knowing(server):
    """A server whose instance finds known requests, and answers when the test calls it."""
    server.instance.knows = server.instance.waits = True
    return server


def is_clean(server):
    """Whether nothing of any request is left."""
    return server.is_idle() and not server.instance.jobs and not server.instance.contents


@pytest.fixture(scope="module", params=["told", "sent", "lent"])
def pair(request, shared):
    """Two servers: of one the instance finds known requests, and may answer them itself, or even read them."""
    known, plain = type(shared)(), type(shared)()
    known.instance.knows = True
    known.instance.sends = request.param != "told"
    known.instance.may_read = request.param == "lent"
    known.instance.waits = plain.instance.waits = True
    yield known, plain
    known.memory.close()
    plain.memory.close()


def feed_both(pair, pieces):
    """The bytes that each of two servers sends to a client that sends these pieces."""
    sent = []
    for server in pair:
        server.model.plans = RequestPlans()
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
    """Responses to known requests."""

    def test_the_same_as_ever(self, knowing):
        """The third is found, and answered in words that Python finds; from then on these are known, too."""
        transport = knowing.connect()
        for number in range(6):
            transport.feed(infer(number, -number))
            assert knowing.state.in_flight == 1
            answer_all(knowing)
            assert is_clean(knowing)
        responses = transport.responses()
        assert [values_of(each) for each in responses] == [[number, -number] for number in range(6)]
        assert len({str(headers) for _, headers, _ in responses}) == 1
        assert knowing.instance.known_count == 4
        assert len(knowing.instance.contents) == 0
        assert knowing.instance.released == 3  # a known response needs no release

    def test_pipelined(self, knowing):
        """Many requests at a time are answered in order, whether they are known or not."""
        transport = alike(knowing)
        rng = random.Random(0)
        expected = [[1, 2], [1, 2]]
        stream = []
        for number in range(100):
            known = rng.random() < 0.7
            stream.append(infer(number, 0) if known else infer(number, 0, 1, id=str(number)))
            expected.append([number, 0] if known else [number, 0, 1])
        transport.feed(b"".join(stream))
        assert knowing.state.in_flight == PIPELINED_MAX
        answer_all(knowing)
        assert [values_of(each) for each in transport.responses()] == expected
        assert 50 < knowing.instance.known_count < 90
        assert is_clean(knowing)

    def test_answered_out_of_order(self, knowing):
        """A response waits for those before it."""
        transport = alike(knowing, count=4)
        before = len(transport.sent)
        transport.feed(infer(1, 1) + infer(2, 2) + infer(3, 3))
        first, second, third = knowing.instance.jobs
        for job in (third, second, first):
            assert len(transport.sent) == before
            knowing.instance.jobs[:] = [job]
            answer_all(knowing)
        assert [values_of(each) for each in transport.responses()[4:]] == [[1, 1], [2, 2], [3, 3]]
        assert is_clean(knowing)

    def test_before_a_stream(self, knowing):
        """A stream behind a known request begins when that one is answered, of which no native thread would tell."""
        knowing.instance.sends = True
        transport = alike(knowing, count=4)
        body = b'{"IN": 1}'
        stream = b"POST /v2/models/d/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
        transport.feed(infer(5, 6))
        transport.feed(stream % (len(body), body))
        assert knowing.decoupled.jobs == []
        answer_all(knowing)
        knowing.decoupled.say(1, final=True)
        assert transport.statuses() == [200] * 6
        assert is_clean(knowing)

    def test_other_connections(self, knowing):
        """A request that is known on one connection is known on all connections."""
        alike(knowing)
        transport = knowing.connect()
        transport.feed(infer(5, 6))
        assert knowing.instance.known_count == 1
        answer_all(knowing)
        assert values_of(transport.responses()[0]) == [5, 6]

    def test_in_pieces(self, knowing):
        """A request is the same however it is cut, and nothing is in flight before all of it is there."""
        transport = alike(knowing, count=3)
        request = infer(8, 9)
        for cut in range(1, len(request)):
            transport.feed(request[:cut])
            assert knowing.state.in_flight == 0
            transport.feed(request[cut:])
            answer_all(knowing)
            assert values_of(transport.responses()[-1]) == [8, 9]
            assert is_clean(knowing)
        assert len(transport.responses()) == 3 + len(request) - 1

    def test_alternating(self, knowing):
        """Several kinds of requests are known at a time."""
        transport = knowing.connect()
        kinds = [infer(1), infer(1, 2), infer(1, 2, 3), infer(1, lines=["X-Client: other"])]
        for _ in range(5):
            for request in kinds:
                transport.feed(request)
                answer_all(knowing)
        assert [values_of(each) for each in transport.responses()] == [[1], [1, 2], [1, 2, 3], [1]] * 5
        # Of the last kind only the head is new at first.
        assert knowing.instance.known_count == 3 * 3 + 4
        assert is_clean(knowing)

    def test_empty_tensors(self, knowing):
        """A body may have nothing behind its document: there is nothing to be gained then."""
        transport = alike(knowing, count=5, request=infer())
        assert [body for _, _, body in transport.responses()] == [transport.responses()[0][2]] * 5
        assert knowing.instance.known_count == 0

    def test_raw_requests_are_not_known(self, knowing):
        """They have no document to be known by."""
        transport = alike(knowing, count=4, request=post(contents([1, 2]), 0))
        assert [values_of(each) for each in transport.responses()] == [[1, 2]] * 4
        assert knowing.instance.known_count == 0


REQUESTS = st.lists(
    st.sampled_from(
        [
            *[infer(1, 2)] * 4,
            infer(3, 4),
            infer(1, 2, 3),
            infer(5, 6, lines=["X: y"]),
            infer(7, 8, id="1"),
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
    """A server that knows requests sends the same bytes, for any sequence of requests in any pieces."""
    stream = b"".join(requests)
    cuts = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    taught = [infer(1, 2)] * (3 + ALIKE_MIN)
    known, plain = feed_both(pair, taught + [stream[start:end] for start, end in pairwise(cuts)])
    assert known == plain


class TestUnknown:
    """Requests that look as if they were known."""

    @pytest.mark.parametrize(
        "other",
        [
            infer(1, 2, id="7"),
            infer(1, 2, lines=["X-Other: head"]),
            infer(1, 2, 3),
            infer(1, 2, lines=["Accept-Encoding: gzip"]),
            infer(1, 2, lines=["Connection: close"]),
            infer(1, 2, lines=["Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]),
            infer(1, 2, lines=["Expect: 100-continue"]),
            infer(1, 2, parameters={"binary_data_output": False}),
            infer(1, 2, outputs=[{"name": "OUT", "parameters": {"classification": 1, "binary_data": True}}]),
            chunked(1, 2),
            post(b'{"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}]}', None),
        ],
        ids=["id", "head", "size", "gzip", "close", "traceparent", "expect", "json", "class", "chunked", "JSON"],
    )  # fmt: skip
    def test_others(self, knowing, other):
        """A request that differs in anything is decoded and answered as if it were the first."""
        transport = alike(knowing, count=4)
        assert knowing.instance.known_count == 2
        transport.feed(other)
        answer_all(knowing)
        assert knowing.instance.known_count == 2
        fresh = knowing.connect()
        knowing.model.plans = RequestPlans()
        fresh.feed(other)
        answer_all(knowing)
        assert transport.sent.endswith(fresh.sent)
        assert transport.statuses()[4:] == fresh.statuses() == [200]
        assert is_clean(knowing)

    def test_never_known(self, knowing):
        """A request that must be decoded each time is never known, however often it comes."""
        for request in (
            infer(1, 2, id="7"),
            infer(1, 2, lines=["Accept-Encoding: gzip"]),
            infer(1, 2, lines=["Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]),
            infer(1, 2, parameters={"binary_data_output": False}),
            chunked(1, 2),
        ):
            alike(knowing, count=4, request=request)
        assert knowing.instance.known_count == 0

    def test_a_connection_that_ends(self, knowing):
        """Its request is not known, and it ends as it should."""
        for _ in range(4):
            transport = alike(knowing, count=1, request=infer(1, 2, lines=["Connection: close"]))
            assert transport.closed
        assert knowing.instance.known_count == 0

    @pytest.mark.parametrize("second", [chunked(1, 2), "gzip"])
    def test_taught_by_another_form(self, knowing, second):
        """A request whose body came in another form counts as one with the same document."""
        if second == "gzip":
            header = document(2)
            second = post(gzip.compress(header + contents([1, 2])), len(header), "Content-Encoding: gzip")
        transport = alike(knowing, count=1)
        for request in (second, infer(1, 2), infer(1, 2)):
            transport.feed(request)
            answer_all(knowing)
        assert [values_of(each) for each in transport.responses()] == [[1, 2]] * 4
        assert knowing.instance.known_count == 1

    def test_what_is_no_gzip(self, knowing):
        """A body that is not compressed, though its head says so, is refused, also where all else is known."""
        header = document(100)
        body = header + bytes(400)
        name = "x" * (len(body) - len(gzip.compress(body)) - 1)  # which makes it as long as it is without compression
        compressed = io.BytesIO()
        with gzip.GzipFile(name, "wb", fileobj=compressed) as file:
            file.write(body)
        assert len(compressed.getvalue()) == len(body)
        transport = alike(knowing, count=4, request=post(compressed.getvalue(), len(header), "Content-Encoding: gzip"))
        transport.feed(post(body, len(header), "Content-Encoding: gzip"))
        assert transport.statuses() == [200] * 4 + [400]
        assert knowing.instance.known_count == 0

    def test_another_document_of_the_same_length(self, knowing):
        """A document of the same length is compared, because the head does not identify it."""
        transport = alike(knowing, count=4)
        wrong = infer(1, 2).replace(b'"IN"', b'"NO"')
        assert len(wrong) == len(infer(1, 2))
        transport.feed(wrong + infer(3, 4))
        answer_all(knowing)
        assert transport.statuses() == [200] * 4 + [400, 200]
        assert values_of(transport.responses()[-1]) == [3, 4]
        assert knowing.instance.known_count == 3

    def test_two_documents_by_turns(self, knowing):
        """With the same head, the latest one is found; both are answered."""
        transport = knowing.connect()
        one, other = infer(1, 2), infer(3, 4).replace(b'"inputs"', b' "inputs"').replace(b'"FP32", "', b'"FP32","')
        assert one[: one.index(b"\r\n\r\n")] == other[: other.index(b"\r\n\r\n")]
        for _ in range(6):
            transport.feed(one + other)
            answer_all(knowing)
        assert [values_of(each) for each in transport.responses()] == [[1, 2], [3, 4]] * 6

    def test_a_header_length_of_nothing(self, knowing):
        """A document that is longer than its body is refused as usual."""
        transport = alike(knowing, count=3)
        transport.feed(post(document(2) + contents([1, 2]), 1000))
        assert transport.statuses() == [200] * 3 + [400]

    def test_forwarded_headers(self, knowing):
        """A request with headers that are forwarded to the model is never known."""
        knowing.read_head = HeadReader(pattern="X-.*").read
        transport = alike(knowing, count=4, request=infer(1, 2, lines=["X-User: 1"]))
        assert transport.statuses() == [200] * 4
        assert knowing.instance.known_count == 0

    def test_restricted(self, knowing):
        """Only requests with the header are served, even if the request is known."""
        knowing.read_head = HeadReader({"inference": Restriction("key", "secret")}).read
        allowed = infer(1, 2, lines=["key: secret"])
        transport = alike(knowing, count=4, request=allowed)
        transport.feed(infer(1, 2) + infer(1, 2, lines=["key: wrong"]) + allowed)
        answer_all(knowing)
        assert transport.statuses() == [200] * 4 + [403] * 2 + [200]
        assert knowing.instance.known_count == 3

    def test_large(self, knowing):
        """A large body goes to shared memory, as usual."""
        values = [1.5] * (KNOWN_BYTES_MAX // 4 + 1)
        transport = alike(knowing, count=4, request=infer(*values))
        assert [values_of(each) for each in transport.responses()] == [values] * 4
        assert knowing.instance.known_count == 0

    def test_many_heads(self, knowing):
        """Not all are remembered, and none is taken for another one."""
        transport = knowing.connect()
        for turn in range(2):
            for number in range(PLANS_KEPT_MAX + 10):
                transport.feed(infer(number, turn, lines=[f"X-Number: {number}"]))
                answer_all(knowing)
        last = [values_of(each) for each in transport.responses()]
        assert last == [[number, turn] for turn in range(2) for number in range(PLANS_KEPT_MAX + 10)]
        assert len(knowing.model.plans._by_head) <= PLANS_KEPT_MAX

    def test_no_place(self, knowing):
        """Without a place at an instance it waits in the queue, behind those that do."""
        transport = alike(knowing, count=4)
        knowing.instance.capacity = 0
        transport.feed(infer(3, 3) + infer(4, 4))
        assert len(knowing.model.scheduler) == 2
        knowing.instance.capacity = 1 << 30
        transport.feed(infer(5, 5))  # a new request must not overtake them
        assert len(knowing.model.scheduler) == 0
        answer_all(knowing)
        assert [values_of(each) for each in transport.responses()[4:]] == [[3, 3], [4, 4], [5, 5]]
        assert is_clean(knowing)


class TestWatched:
    """Requests that are traced, logged or measured."""

    def test_traced(self, knowing, monkeypatch):
        """From the moment on at which tracing is switched on, each request has its trace; and not when it is off."""
        traces = []
        monkeypatch.setattr(TraceWriter, "put", lambda self, write: traces.extend(write.traces))
        transport = alike(knowing, count=4)
        usual = knowing.state.tracer
        knowing.trace_with(Tracer(TraceSettings(levels=("TIMESTAMPS",), rate=1, file="f"), "1", lambda name: True))
        alike(knowing, transport)
        assert len(traces) == 2
        assert knowing.instance.known_count == 2
        knowing.trace_with(usual)
        alike(knowing, transport)
        assert len(traces) == 2
        assert knowing.instance.known_count == 4
        assert transport.statuses() == [200] * 8

    def test_traced_meanwhile(self, knowing, monkeypatch):
        """A request that began without a trace is answered without one."""
        transport = alike(knowing, count=3)
        transport.feed(infer(1, 2))
        knowing.trace_with(Tracer(TraceSettings(levels=("TIMESTAMPS",), rate=1, file="f"), "1", lambda name: True))
        answer_all(knowing)
        assert transport.statuses() == [200] * 4
        assert is_clean(knowing)

    def test_logged(self, knowing, caplog):
        """Each request has its line while lines are verbose."""
        caplog.set_level("DEBUG", "pyruntime")
        transport = alike(knowing, count=4)
        knowing.state.log_settings.verbose = True
        alike(knowing, transport, 3)
        knowing.state.log_settings.verbose = False
        alike(knowing, transport)
        assert len([line for line in caplog.messages if "/v2/models/m/infer" in line]) == 3
        assert knowing.instance.known_count == 4
        assert transport.statuses() == [200] * 9


class TestModels:
    """Changes of a model while its requests are known."""

    @pytest.fixture
    def another(self, knowing):
        """Make another version of the model; its instance."""

        def another(version):
            instance = type(knowing.instance)(knowing.memory)
            instance.knows = instance.waits = True
            model = ModelVersion(knowing.model.spec, version, knowing.memory, lambda model, reason: None)
            model.serve([instance])
            knowing.state.table.begin_load("m", version)
            knowing.state.table.ready("m", version, model)
            return instance

        return another

    @pytest.mark.parametrize("version", [1, 2])
    def test_replaced(self, knowing, another, version):
        """The new model version gets all later requests; the request under way is answered by the old one."""
        transport = alike(knowing, count=4)
        transport.feed(infer(1, 1))
        other = another(version)
        transport.feed(infer(2, 2))
        assert [len(each.jobs) for each in (knowing.instance, other)] == [1, 1]
        other.answer()
        answer_all(knowing)
        for _ in range(3):
            transport.feed(infer(3, 3))
            assert knowing.instance.jobs == []
            other.answer()
        assert other.known_count == 2
        assert transport.statuses() == [200] * 9
        assert is_clean(knowing)

    def test_unloaded(self, knowing):
        """The model is not found any more, and requests under way are answered."""
        transport = alike(knowing, count=4)
        transport.feed(infer(1, 1))
        knowing.state.table.begin_unload("m", 1)
        transport.feed(infer(2, 2))
        knowing.state.table.unloaded("m", 1)
        transport.feed(infer(3, 3))
        answer_all(knowing)
        assert transport.statuses() == [200] * 5 + [404] * 2
        assert knowing.instance.known_count == 3
        assert is_clean(knowing)

    def test_unloaded_while_a_body_comes_in(self, knowing):
        """The request does not find the model when its body is complete."""
        transport = alike(knowing, count=4)
        request = infer(1, 1)
        transport.feed(request[:-3])
        knowing.state.table.begin_unload("m", 1)
        knowing.state.table.unloaded("m", 1)
        transport.feed(request[-3:])
        answer_all(knowing)
        assert transport.statuses() == [200] * 4 + [404]
        assert is_clean(knowing)

    def test_exiting(self, knowing):
        """A server that exits refuses new requests, and answers those under way."""
        transport = alike(knowing, count=4)
        transport.feed(infer(1, 1))
        knowing.state.exiting = True
        transport.feed(infer(2, 2))
        answer_all(knowing)
        assert transport.statuses() == [200] * 5 + [503]
        assert json.loads(transport.responses()[-1][2]) == {"error": "Server exiting"}
        assert is_clean(knowing)

    def test_models_have_their_own(self, knowing):
        """The same body for another model is another request."""
        transport = alike(knowing, count=4)
        transport.feed(infer(1, 2).replace(b"/models/m/", b"/models/d/"))
        assert transport.statuses() == [200] * 4 + [501]
        assert knowing.decoupled.known_count == 0


class TestClients:
    """Clients that leave while their requests are known."""

    @pytest.mark.parametrize("count", [3, 4])
    def test_lost(self, knowing, count):
        """The requests of a lost client are cancelled, once, and their responses are dropped."""
        transport = alike(knowing, count=count - 1)
        transport.feed(infer(1, 1) + infer(2, 2))
        jobs = list(knowing.instance.jobs)
        released = knowing.instance.released
        transport.lose()
        assert knowing.instance.cancelled == jobs
        assert knowing.state.in_flight == 0
        answer_all(knowing)
        assert is_clean(knowing)
        assert knowing.instance.released - released == (2 if count == 3 else 0)
        assert len(transport.responses()) == count - 1

    def test_lost_with_an_answer(self, knowing):
        """A request whose response waits for an earlier one is not cancelled when the client is lost."""
        transport = alike(knowing, count=4)
        transport.feed(infer(1, 1) + infer(2, 2))
        first, second = knowing.instance.jobs
        knowing.instance.jobs[:] = [second]
        answer_all(knowing)
        transport.lose()
        assert knowing.instance.cancelled == [first]
        assert knowing.state.in_flight == 0

    def test_fails_after_it_is_lost(self, knowing):
        """A failure after the client was lost is dropped as well."""
        transport = alike(knowing, count=4)
        transport.feed(infer(1, 1))
        transport.lose()
        self.fail(knowing)
        assert is_clean(knowing)

    def test_half_closed(self, knowing):
        """A client that has finished sending is answered, and the instance gets the cancellation."""
        transport = alike(knowing, count=4)
        transport.feed(infer(1, 1) + infer(2, 2))
        jobs = list(knowing.instance.jobs)
        assert transport._connection.eof_received()
        assert knowing.instance.cancelled == jobs
        answer_all(knowing)
        responses = transport.responses()
        assert [values_of(each) for each in responses[4:]] == [[1, 1], [2, 2]]
        assert [headers.get("connection") for _, headers, _ in responses] == [None] * 5 + ["close"]
        assert transport.closed
        assert is_clean(knowing)

    @pytest.mark.parametrize("count", [2, 3, 4])
    def test_idle_connections_are_closed(self, knowing, count):
        """The response has the header `Connection: close`, byte for byte, whether its head is remembered or not."""
        transport = alike(knowing, count=count)
        before = len(transport.sent)
        transport.feed(infer(1, 2))
        transport._connection.close_idle()
        answer_all(knowing)
        assert transport.closed
        alone = knowing.connect()
        alone.feed(infer(1, 2, lines=["Connection: close"]))
        answer_all(knowing)
        assert transport.sent[before:] == alone.sent
        assert is_clean(knowing)

    def test_a_response_with_close_is_not_remembered(self, knowing):
        """Those that follow on other connections have the usual head."""
        transport = alike(knowing)
        transport.feed(infer(1, 2))  # the third, whose response would be remembered
        transport._connection.close_idle()
        answer_all(knowing)
        other = alike(knowing, count=3)
        assert [headers.get("connection") for _, headers, _ in other.responses()] == [None] * 3
        assert not other.closed

    def test_a_client_that_does_not_read(self, knowing):
        """Its next requests wait in the socket."""
        transport = alike(knowing, count=4)
        transport.stalled = True
        transport.feed(infer(1, 1))
        answer_all(knowing)
        transport.feed(infer(2, 2))
        assert knowing.instance.jobs == []
        transport.drain()
        answer_all(knowing)
        assert [values_of(each) for each in transport.responses()[4:]] == [[1, 1], [2, 2]]
        assert is_clean(knowing)

    def fail(self, server, message="no luck"):
        """Answer the first job with a failure."""
        job = server.instance.jobs.pop(0)
        server.instance.contents.pop(job)
        job.respond(InferenceError(message, Code.INTERNAL), True)

    @pytest.mark.parametrize("count", [2, 5])
    def test_failures(self, knowing, count):
        """A failure is sent as usual, and does not affect the next request."""
        transport = alike(knowing, count=count)
        transport.feed(infer(1, 2))
        self.fail(knowing)
        assert transport.responses()[-1][::2] == (500, b'{"error":"no luck"}')
        alike(knowing, transport)
        assert transport.statuses() == [200] * count + [500, 200, 200]
        assert is_clean(knowing)

    def test_nothing_is_left(self, knowing):
        """Of an exchange that is over, however it ended."""
        alike(knowing)
        seen = []
        for end in ("answered", "encoded", "lost", "failed"):
            transport = knowing.connect()
            transport.feed(infer(1, 2))
            seen.append(weakref.ref(knowing.instance.jobs[0]))
            assert type(knowing.instance.jobs[0]).__name__ == "KnownExchange"
            if end == "lost":
                transport.lose()
            if end == "failed":
                self.fail(knowing)
            answer_all(knowing)
        knowing.instance.cancelled.clear()
        gc.collect()
        assert [each() for each in seen] == [None] * 4
        assert is_clean(knowing)


def test_load_reports(knowing):
    """Requests that ask for a load report are never known, because each response has another one."""
    transport = alike(knowing, count=4)
    before = knowing.instance.known_count
    for _ in range(3 * ALIKE_MIN):
        transport.feed(infer(1, 2, lines=["Endpoint-Load-Metrics-Format: text"]))
        answer_all(knowing)
    assert knowing.instance.known_count == before
    for _, headers, _ in transport.responses()[4:]:
        assert headers["endpoint-load-metrics"].startswith("TEXT ")
    assert is_clean(knowing)


class TestRemembered:
    """Which responses are remembered."""

    def respond(self, server, values, **options):
        """Answer the first job, which is known, with these values."""
        job = server.instance.jobs.pop(0)
        known, *_ = server.instance.contents.pop(job)
        output = OutputTensor("OUT", "FP32", [len(values)], memoryview(contents(values)))
        job.respond(InferResponse("m", 1, "", [output], release=server.instance._release, **options), True)
        return known

    def test_plain(self, knowing):
        """The remembered outputs, and the head of the response, which is all but the contents."""
        transport = alike(knowing)
        transport.feed(infer(1, 2))
        known = self.respond(knowing, [5, 6])
        assert known.outputs == [("OUT", "FP32", [2], 8)]
        assert transport.sent.endswith(known.head + contents([5, 6]))
        assert values_of(transport.responses()[-1]) == [5, 6]

    def test_parameters(self, knowing):
        """Parameters are likely to be others next time."""
        transport = alike(knowing)
        transport.feed(infer(1, 2))
        assert self.respond(knowing, [5, 6], parameters={"a": 1}).head is None
        _, headers, body = transport.responses()[-1]
        assert json.loads(body[: int(headers["inference-header-content-length"])])["parameters"] == {"a": 1}

    def test_large(self, knowing):
        """A large response is sent from where it lies: it has no remembered head."""
        transport = alike(knowing)
        values = [1.0] * (JOINED_BYTES_MAX // 4)
        transport.feed(infer(1, 2))
        released = knowing.instance.released
        assert self.respond(knowing, values).head is None
        assert values_of(transport.responses()[-1]) == values
        assert knowing.instance.released == released + 1

    def test_no_output(self, knowing):
        """A response without binary outputs is remembered, too."""
        transport = alike(knowing)
        transport.feed(infer(1, 2))
        job = knowing.instance.jobs.pop(0)
        known, *_ = knowing.instance.contents.pop(job)
        job.respond(InferResponse("m", 1, "", []), True)
        assert known.outputs == []
        assert transport.sent.endswith(known.head)
        assert "inference-header-content-length" not in transport.responses()[-1][1]


class TestSent:
    """Responses that instances send themselves, about which the connection learns later."""

    @pytest.fixture
    def sending(self, knowing):
        """A server whose instance does so."""
        knowing.instance.sends = True
        return knowing

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

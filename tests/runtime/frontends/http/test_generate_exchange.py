# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The generate extension over connections that note written data: see conftest.py."""

import asyncio
import json

import pytest

from pyruntime.runtime.frontends.common.client_timeouts import IDLE_S_MAX
from pyruntime.runtime.frontends.http import generate_exchange
from pyruntime.runtime.frontends.http.connection import READ_AHEAD_BYTES_MAX
from pyruntime.runtime.frontends.http.json_pieces import LARGE_BYTES
from pyruntime.runtime.frontends.http.write_stall import STALLED_S_MAX
from pyruntime.runtime.scheduling.policy_queue import QueueFull
from pyruntime.utils.errors import Code, InferenceError

from ..conftest import INPUT_BYTES_MAX

NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)
# More elements of FP32 than are written at once.
LARGE_COUNT = LARGE_BYTES // 4 + 1
READY = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


def ask(what, model="d", version=b"1.1", headers=b"", **members):
    body = json.dumps({"IN": [1, 2], **members}).encode()
    return b"POST /v2/models/%b/%b HTTP/%b\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (
        model.encode(), what, version, headers, len(body), body,
    )  # fmt: skip


def generate(**how):
    return ask(b"generate", **how)


def stream(**how):
    return ask(b"generate_stream", **how)


def event(value, **members):
    """The event of a response of model "d"."""
    return members | {"model_name": "d", "model_version": "1", "OUT": value}


def events(body):
    """The events of a stream's body, which holds nothing else."""
    *blocks, rest = body.split(b"\n\n")
    assert rest == b""
    assert all(block.startswith(b"data: ") and b"\n" not in block for block in blocks)
    return [json.loads(block[6:]) for block in blocks]


def only(transport):
    (response,) = transport.responses()
    return response


def with_threads(server, act):
    """`act` within an event loop; when this returns, so have all threads."""

    async def main():
        async with asyncio.TaskGroup() as tasks:
            server.state.tasks = tasks
            act()

    asyncio.run(main())


def failure(message="no", code=Code.INTERNAL):
    return InferenceError(message, code)


class TestGenerate:
    def test_of_a_model_that_is_not_decoupled(self, server):
        """Its one response is the answer, with its id."""
        transport = server.connect()
        transport.feed(generate(model="m", id="7"))
        status, headers, body = only(transport)
        assert (status, headers["content-type"]) == (200, "application/json")
        assert json.loads(body) == {"id": "7", "model_name": "m", "model_version": "1", "OUT": [1.0, 2.0]}
        assert server.instance.released == 1
        assert server.is_idle()

    @pytest.mark.parametrize("together", [True, False])
    def test_of_a_decoupled_model(self, server, together):
        """One response is the answer, whether it says that it is the last one or that comes behind it."""
        transport = server.connect()
        transport.feed(generate())
        server.decoupled.say(5, final=together)
        assert server.decoupled.released == 1
        if not together:
            assert transport.sent == b""
            server.decoupled.say(None, final=True)
        assert json.loads(only(transport)[2]) == event(5.0)
        assert server.decoupled.cancelled == []
        assert server.is_idle()

    def test_without_a_response(self, server):
        """A model that ends without one has not produced exactly one."""
        transport = server.connect()
        transport.feed(generate())
        server.decoupled.say(None, final=True)
        assert (only(transport)[0], json.loads(only(transport)[2])) == (500, {"error": NOT_ONE})
        assert server.is_idle()

    def test_with_two_responses(self, server):
        """A second response is refused at once, the model is cancelled, and its later responses are dropped."""
        transport = server.connect()
        transport.feed(generate() + READY)
        (job,) = server.decoupled.jobs
        server.decoupled.say(1)
        server.decoupled.say(2)
        assert transport.statuses() == [500, 200]
        assert json.loads(transport.responses()[0][2]) == {"error": NOT_ONE}
        assert server.decoupled.cancelled == [job]
        server.decoupled.say(3)
        server.decoupled.say(failure())
        server.decoupled.say(4, final=True)
        assert server.decoupled.released == 4
        assert len(transport.responses()) == 2
        assert server.is_idle()

    @pytest.mark.parametrize("code", Code)
    @pytest.mark.parametrize("before", [0, 1])
    def test_error(self, server, code, before):
        """An error is the answer, with the status of its code, even behind a response."""
        transport = server.connect()
        transport.feed(generate())
        for _ in range(before):
            server.decoupled.say(1)
        server.decoupled.say(failure(code=code), final=True)
        assert only(transport)[0] in (400, 404, 500, 501, 503, 504)
        assert json.loads(only(transport)[2]) == {"error": "no"}
        assert server.is_idle()

    def test_error_that_is_not_the_last(self, server):
        """The error is sent before the end, and the model is cancelled."""
        transport = server.connect()
        transport.feed(generate())
        (job,) = server.decoupled.jobs
        server.decoupled.say(failure())
        assert transport.statuses() == [500]
        assert server.decoupled.cancelled == [job]
        server.decoupled.say(None, final=True)
        assert server.is_idle()

    def test_response_without_a_json_form(self, server):
        """It cannot be the answer."""
        transport = server.connect()
        transport.feed(generate())
        server.decoupled.say(1, datatype="FP16", final=True)
        assert only(transport)[0] == 400
        assert "sending FP16 data via JSON is not supported." in json.loads(only(transport)[2])["error"]
        assert server.decoupled.released == 1
        assert server.is_idle()

    def test_cut_off(self, server):
        """A client that goes cancels the request, and gets no answer."""
        transport = server.connect()
        transport.feed(generate())
        (job,) = server.decoupled.jobs
        server.decoupled.say(1)
        transport.lose()
        assert server.decoupled.cancelled == [job]
        server.decoupled.say(2, final=True)
        assert server.decoupled.released == 2
        assert server.is_idle()


class TestStream:
    def test_of_a_model_that_is_not_decoupled(self, server):
        """Its response is the only event, and the connection goes on behind it."""
        transport = server.connect()
        transport.feed(stream(model="m") + READY)
        (status, headers, body), second = transport.responses()
        assert status == second[0] == 200
        assert headers == {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            "transfer-encoding": "chunked",
        }
        assert [each["OUT"] for each in events(body)] == [[1.0, 2.0]]
        assert not transport.closed
        assert server.is_idle()

    def test_event_by_event(self, server):
        """Each response is sent when it comes and is released; the end is no event."""
        transport = server.connect()
        transport.feed(stream(id="7"))
        assert transport.sent == b""
        for count in (1, 2, 3):
            server.decoupled.say(count)
            assert events(only(transport)[2]) == [event(float(each), id="7") for each in range(1, count + 1)]
            assert server.decoupled.released == count
        assert server.state.in_flight == 1
        assert not transport.sent.endswith(b"0\r\n\r\n")
        server.decoupled.say(None, final=True)
        assert transport.sent.endswith(b"\r\n0\r\n\r\n")
        assert len(events(only(transport)[2])) == 3
        assert server.is_idle()
        assert not transport.closed

    def test_large_events_are_written_in_pieces_in_threads(self, server):
        """Others wait behind them, and each response is released when it is sent. The end is that of any stream."""
        transport = server.connect()

        def act():
            transport.feed(stream(id="7"))
            server.decoupled.say(1)
            server.decoupled.say(2, count=LARGE_COUNT)
            server.decoupled.say(failure("a"))
            server.decoupled.say(3, count=LARGE_COUNT)
            assert events(only(transport)[2]) == [event(1.0, id="7")]
            server.decoupled.say(4, final=True, count=LARGE_COUNT)

        with_threads(server, act)
        many = [event([float(each)] * LARGE_COUNT, id="7") for each in (2, 3, 4)]
        assert events(only(transport)[2]) == [event(1.0, id="7"), many[0], {"error": "a"}, *many[1:]]
        assert transport.sent.count(b"HTTP/1.1 200") == 1
        assert transport.sent.endswith(b"\r\n0\r\n\r\n")
        assert server.decoupled.released == 4
        assert server.state.pending_bytes.used == 0
        assert server.is_idle()

    def test_a_large_event_without_a_json_form(self, server):
        """It becomes an error like a small one, also as the first."""
        transport = server.connect()

        def act():
            transport.feed(stream())
            server.decoupled.say(2, datatype="FP16", count=LARGE_COUNT)
            server.decoupled.say(3, final=True)

        with_threads(server, act)
        status, _, body = only(transport)
        first, second = events(body)
        assert (status, second) == (400, event(3.0))
        assert "sending FP16 data via JSON is not supported." in first["error"]
        assert server.decoupled.released == 2

    @pytest.mark.parametrize("turns", [0, 1, 20])
    def test_a_client_that_leaves_while_a_large_event_is_written(self, server, turns):
        transport = server.connect()

        async def main():
            async with asyncio.TaskGroup() as tasks:
                server.state.tasks = tasks
                transport.feed(stream())
                server.decoupled.say(2, count=LARGE_COUNT)
                server.decoupled.say(3, count=LARGE_COUNT)
                for _ in range(turns):
                    await asyncio.sleep(0)
                transport.lose()

        asyncio.run(main())
        assert server.decoupled.released == 2
        assert server.state.pending_bytes.used == 0
        server.decoupled.say(None, final=True)
        assert server.is_idle()

    def test_of_nothing(self, server):
        """A model that produces nothing makes an empty stream, which is no error."""
        transport = server.connect()
        transport.feed(stream() + READY)
        server.decoupled.say(None, final=True)
        assert [(status, body) for status, _, body in transport.responses()] == [(200, b""), (200, b"")]
        assert server.is_idle()

    @pytest.mark.parametrize("final", [True, False])
    def test_error_first(self, server, final):
        """The status is that of the first response; an error is an event, and may have others behind it."""
        transport = server.connect()
        transport.feed(stream())
        server.decoupled.say(failure(code=Code.NOT_FOUND), final=final)
        if not final:
            server.decoupled.say(1, final=True)
        status, headers, body = only(transport)
        assert (status, headers["content-type"]) == (404, "text/event-stream; charset=utf-8")
        assert events(body) == [{"error": "no"}] + ([] if final else [event(1.0)])
        assert server.is_idle()

    def test_error_in_the_middle(self, server):
        """Later ones are events only."""
        transport = server.connect()
        transport.feed(stream())
        for outcome in (1, failure("a"), failure("b"), 2):
            server.decoupled.say(outcome)
        server.decoupled.say(failure("c"), final=True)
        status, _, body = only(transport)
        assert status == 200
        assert events(body) == [event(1.0), {"error": "a"}, {"error": "b"}, event(2.0), {"error": "c"}]
        assert server.is_idle()

    def test_response_without_a_json_form(self, server):
        """It becomes an error, and the stream goes on."""
        transport = server.connect()
        transport.feed(stream())
        server.decoupled.say(1)
        server.decoupled.say(2, datatype="FP16")
        server.decoupled.say(3, final=True)
        first, second, third = events(only(transport)[2])
        assert (first["OUT"], third["OUT"]) == (1.0, 3.0)
        assert "sending FP16 data via JSON is not supported." in second["error"]
        assert server.decoupled.released == 3

    def test_request_that_is_refused(self, server):
        """It never becomes a stream."""
        transport = server.connect()
        transport.feed(stream(IN="x") + READY)
        assert transport.statuses() == [400, 200]
        assert transport.responses()[0][1]["content-type"] == "application/json"
        assert server.is_idle()

    def test_of_an_old_client(self, server):
        """A client of HTTP/1.0 gets the bare events, and then the end of the connection."""
        transport = server.connect()
        transport.feed(stream(version=b"1.0"))
        server.decoupled.say(1)
        server.decoupled.say(2)
        assert not transport.closed
        server.decoupled.say(None, final=True)
        status, headers, body = only(transport)
        assert (status, headers["connection"]) == (200, "close")
        assert "transfer-encoding" not in headers
        assert events(body) == [event(1.0), event(2.0)]
        assert transport.closed
        assert server.is_idle()

    def test_last_of_its_connection(self, server):
        """A client that wants no other answer gets the end of the connection behind the last chunk."""
        transport = server.connect()
        transport.feed(stream(headers=b"Connection: close\r\n"))
        server.decoupled.say(1)
        assert not transport.closed
        server.decoupled.say(2, final=True)
        assert only(transport)[1]["connection"] == "close"
        assert transport.sent.endswith(b"0\r\n\r\n")
        assert transport.closed


class TestOrder:
    @pytest.mark.parametrize("first", [generate, stream])
    def test_behind_another_request(self, server, first):
        """A stream begins when the requests before it are answered; those behind it begin after it."""
        server.instance.waits = True
        transport = server.connect()
        transport.feed(first(model="m") + stream() + generate(model="m"))
        assert (len(server.instance.jobs), len(server.decoupled.jobs)) == (1, 0)
        server.instance.answer()
        assert transport.statuses() == [200]
        assert (len(server.instance.jobs), len(server.decoupled.jobs)) == (1, 1)
        server.decoupled.say(1)
        assert [each["OUT"] for each in events(transport.responses()[1][2])] == [1.0]
        server.decoupled.say(2, final=True)
        server.instance.answer()
        assert transport.statuses() == [200, 200, 200]
        assert server.is_idle()

    @pytest.mark.parametrize("size", [1, 50, 1 << 20])
    def test_two_streams(self, server, size):
        """The second one begins at the end of the first one, in whatever pieces the requests come."""
        transport = server.connect()
        sent = stream(id="a") + stream(id="b") + READY
        for at in range(0, len(sent), size):
            transport.feed(sent[at : at + size])
        for id in "ab":
            assert [job.id for job in server.decoupled.jobs] == [id]
            server.decoupled.say(1)
            server.decoupled.say(2, final=True)
        found = [[(each["id"], each["OUT"]) for each in events(body)] for _, _, body in transport.responses()[:2]]
        assert found == [[(id, 1.0), (id, 2.0)] for id in "ab"]
        assert transport.statuses() == [200, 200, 200]
        assert server.is_idle()

    def test_refusals_behind_a_stream(self, server):
        """Requests for streams that are refused in their turn are answered one after the other."""
        transport = server.connect()
        refused = [stream(IN="x"), stream(model="nobody")]
        transport.feed(stream() + b"".join(refused * 100) + READY)
        server.decoupled.say(1, final=True)
        assert transport.statuses() == [200] + [400, 404] * 100 + [200]
        assert server.is_idle()

    def test_answers_that_a_client_does_not_read(self, server):
        """A stream does not begin while answers before it wait for the client."""
        server.instance.waits = True
        transport = server.connect()
        transport.feed(generate(model="m") + stream())
        transport.stalled = True
        server.instance.answer()
        assert server.decoupled.jobs == []
        transport.drain()
        server.decoupled.say(1, final=True)
        assert transport.statuses() == [200, 200]
        assert server.is_idle()

    def test_request_that_waits_long(self, server):
        """Its client is not late, however long the one before it takes."""
        transport = server.connect()
        transport.feed(stream() + stream()[:-1])
        for now in range(0, 10 * int(IDLE_S_MAX), int(IDLE_S_MAX)):
            transport._connection.check(now, crowded=True)
        server.decoupled.say(1, final=True)
        transport.feed(stream()[-1:])
        server.decoupled.say(1, final=True)
        assert transport.statuses() == [200, 200]

    def test_much_behind_a_request_that_waits(self, server):
        """The connection is not read beyond a limit until the request begins."""
        server.instance.waits = True
        transport = server.connect()
        large = READY.replace(b"x", b"x" * (READ_AHEAD_BYTES_MAX // 2), 1)
        transport.feed(generate(model="m") + stream())
        for paused in (False, True):
            transport.feed(large)
            assert transport.is_paused is paused
        server.instance.answer()
        server.decoupled.say(1, final=True)
        assert transport.statuses() == [200] * 4
        assert not transport.is_paused
        assert server.is_idle()


class TestSlowClient:
    def test_stops_the_model(self, server):
        """Responses are neither sent nor released while the client does not read; later all of them are."""
        transport = server.connect()
        transport.feed(stream())
        server.decoupled.say(1)
        assert server.decoupled.released == 1
        transport.stalled = True
        for value in (2, 3, 4):
            server.decoupled.say(value)
        assert len(events(only(transport)[2])) == 2
        assert server.decoupled.released == 1
        transport.drain()
        assert [each["OUT"] for each in events(only(transport)[2])] == [1.0, 2.0, 3.0, 4.0]
        assert server.decoupled.released == 4
        server.decoupled.say(None, final=True)
        assert server.is_idle()

    def test_one_event_at_a_time(self, server):
        """A client that stays slow gets one event for each that it takes."""
        transport = server.connect()
        transport.feed(stream())
        transport.stalled = True
        for value in (1, 2, 3):
            server.decoupled.say(value)
        server.decoupled.say(None, final=True)
        for count in (1, 2, 3):
            assert len(events(only(transport)[2])) == count
            assert server.decoupled.released == count - 1
            transport.drain(still_stalled=True)
        assert server.decoupled.released == 3
        transport.drain()
        assert transport.sent.endswith(b"0\r\n\r\n")
        assert server.is_idle()

    def test_that_takes_nothing(self, server, timers):
        """The client is disconnected after a while, and its model is cancelled; reading a little gives it more time."""
        transport = server.connect()
        transport.feed(stream())
        (job,) = server.decoupled.jobs
        transport.stalled = True
        server.decoupled.say(1)
        (timer,) = timers
        assert timer.delay_s == STALLED_S_MAX
        transport.buffered -= 1
        timer.go_off()
        assert not transport.aborted
        timers[-1].go_off()
        assert transport.aborted
        transport.lose()
        assert server.decoupled.cancelled == [job]

    def test_that_takes_what_there_is(self, server, timers):
        """The timer of a stalled client is cancelled when the client reads again or is lost."""
        transport = server.connect()
        transport.feed(stream())
        transport.stalled = True
        server.decoupled.say(1)
        transport.drain()
        assert [timer.cancelled for timer in timers] == [True]
        transport.stalled = True
        server.decoupled.say(2)
        transport.lose()
        assert [timer.cancelled for timer in timers] == [True, True]

    def test_goes(self, server):
        """All waiting responses are released, and the model is cancelled."""
        transport = server.connect()
        transport.feed(stream())
        (job,) = server.decoupled.jobs
        transport.stalled = True
        for outcome in (1, 2, failure(), 3):
            server.decoupled.say(outcome)
        transport.lose()
        assert server.decoupled.released == 3
        assert server.decoupled.cancelled == [job]
        server.decoupled.say(4)
        server.decoupled.say(5, final=True)
        assert server.decoupled.released == 5
        assert server.is_idle()

    @pytest.mark.parametrize("last", [failure("c"), 3])
    def test_too_slow_for_errors(self, server, monkeypatch, last):
        """A model may make any number of errors, but not wait for a client with all of them: the stream ends."""
        monkeypatch.setattr(generate_exchange, "EVENTS_WAITING_MAX", 3)
        transport = server.connect()
        transport.feed(stream())
        (job,) = server.decoupled.jobs
        transport.stalled = True
        for outcome in (1, 2, failure("a"), failure("b"), last, failure("d"), 4):
            server.decoupled.say(outcome)
        assert server.decoupled.cancelled == [job]
        server.decoupled.say(5, final=True)
        transport.drain()
        found = events(only(transport)[2])
        assert found == [
            event(1.0), event(2.0), {"error": "a"}, {"error": "b"}, {"error": "more than 3 events wait for the client"},
        ]  # fmt: skip
        assert transport.sent.endswith(b"0\r\n\r\n")
        assert server.decoupled.released == (5 if last == 3 else 4)
        assert server.is_idle()


class TestGone:
    def test_before_the_first_event(self, server):
        """The request is cancelled, and its responses are dropped."""
        transport = server.connect()
        transport.feed(stream())
        (job,) = server.decoupled.jobs
        transport.lose()
        assert server.decoupled.cancelled == [job]
        server.decoupled.say(1)
        server.decoupled.say(2, final=True)
        assert server.decoupled.released == 2
        assert transport.sent == b""
        assert server.is_idle()

    @pytest.mark.parametrize("leave", ["lose", "stop"])
    def test_while_it_waits_for_its_turn(self, server, leave):
        """The requests before it are cancelled, and it never begins; a client that only stops sending is answered."""
        server.instance.waits = True
        transport = server.connect()
        transport.feed(generate(model="m") + stream())
        if leave == "lose":
            transport.lose()
        else:
            assert transport._connection.eof_received()
        assert len(server.instance.cancelled) == 1
        server.instance.answer()
        assert transport.statuses() == ([] if leave == "lose" else [200])
        assert transport.closed
        assert server.decoupled.jobs == []
        assert server.is_idle()

    def test_while_it_is_queued(self, server):
        """A request that is queued when its client leaves is never executed."""
        server.decoupled.capacity = 0
        transport = server.connect()
        transport.feed(stream())
        transport.lose()
        assert server.decoupled.jobs == []
        assert server.is_idle()

    def test_at_its_end(self, server):
        """A request that has ended is not cancelled."""
        transport = server.connect()
        transport.feed(stream())
        server.decoupled.say(1, final=True)
        transport.lose()
        assert server.decoupled.cancelled == []
        assert server.is_idle()

    def test_client_that_stopped_sending(self, server):
        """The model is cancelled, because the client has most likely gone; its remaining responses are sent."""
        transport = server.connect()
        transport.feed(stream())
        (job,) = server.decoupled.jobs
        server.decoupled.say(1)
        assert transport._connection.eof_received()
        assert server.decoupled.cancelled == [job]
        server.decoupled.say(2, final=True)
        assert [each["OUT"] for each in events(only(transport)[2])] == [1.0, 2.0]
        assert transport.closed
        assert server.is_idle()

    def test_wherever_it_is_lost(self, server):
        """A client that is lost at any byte leaves nothing of its request behind."""
        request = stream()
        for at in range(1, len(request)):
            transport = server.connect()
            transport.feed(request[:at])
            transport.lose()
            assert server.is_idle(), at
        assert server.decoupled.jobs == []


class TestRefusals:
    @pytest.mark.parametrize("what", [b"generate", b"generate_stream"])
    @pytest.mark.parametrize(
        ("how", "status"),
        [
            ({"model": "nobody"}, 404),
            ({"headers": b"Content-Encoding: br\r\n"}, 501),
            ({"OTHER": None}, 400),
            ({"IN": "x"}, 400),
        ],
        ids=["model", "encoding", "parameter", "datatype"],
    )
    def test_no_good_request(self, server, what, how, status):
        """A request that is refused leaves its connection as it was."""
        transport = server.connect()
        transport.feed(ask(what, **how))
        transport.feed(ask(b"generate", model="m"))
        assert transport.statuses() == [status, 200]
        assert "error" in json.loads(transport.responses()[0][2])
        assert server.is_idle()

    @pytest.mark.parametrize("what", ["generate", "generate_stream"])
    @pytest.mark.parametrize("announced", [True, False])
    def test_too_long(self, server, what, announced):
        """--http-max-input-size is the limit, as for other requests."""
        transport = server.connect()
        body = json.dumps({"IN": [1, 2], "text": "x" * INPUT_BYTES_MAX}).encode()
        length = b"Content-Length: %d" % len(body) if announced else b"Transfer-Encoding: chunked"
        sent = body if announced else b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        transport.feed(b"POST /v2/models/m/%b HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n%b" % (what.encode(), length, sent))
        status, _, answer = only(transport)
        assert status == 400
        assert f"exceeds the maximum allowed input size of {INPUT_BYTES_MAX} bytes" in json.loads(answer)["error"]
        assert server.is_idle()

    def test_missing_input(self, server):
        """The server state's own words."""
        transport = server.connect()
        transport.feed(ask(b"generate").replace(b'"IN"', b'"AN"').replace(b"[1, 2]", b"    12"))
        assert only(transport)[0] == 400
        assert "expected 1 inputs but got 0 inputs for model 'd'" in json.loads(only(transport)[2])["error"]

    def test_full_queue(self, server, monkeypatch):
        """A request that finds no room is refused as any other."""
        monkeypatch.setattr(server.state.resolve("d").scheduler, "submit", _refuse)
        transport = server.connect()
        transport.feed(stream())
        assert only(transport)[0] == 503
        assert server.is_idle()


def _refuse(job):
    raise QueueFull

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Endpoints over connections that note what is written: what bodies they take, and what is asked of whom."""

import asyncio
import base64
import json

import pytest

from pyruntime.runtime.frontends.http.endpoint_exchange import EndpointExchange
from pyruntime.runtime.frontends.http.endpoints import ANSWERS
from pyruntime.runtime.frontends.http.exchanges import exchange_of
from pyruntime.runtime.frontends.http.routes import Endpoint
from pyruntime.utils.errors import Code, InferenceError

SYSTEM = "/v2/systemsharedmemory"
CUDA = "/v2/cudasharedmemory"
# Their exchange asks others.
READINESS = {Endpoint.SERVER_READY, Endpoint.MODEL_READY}


class Rows(list):
    """Notes what is asked of it, and says what it is told to."""

    def __getattr__(self, name):
        def method(*arguments):
            self.append((name, *arguments))
            return iter(()) if name == "unregister" else self.said

        return method

    said = ()


class Control:
    """Loads and unloads when it is told to."""

    def __init__(self):
        self.asked = []
        self.outcome = asyncio.Future()

    def check_explicit(self):
        """Requests may load and unload models."""

    async def load(self, *arguments):
        self.asked.append(("load", *arguments))
        await self.outcome

    async def unload(self, *arguments):
        self.asked.append(("unload", *arguments))
        await self.outcome


def ask(server, method, path, document=None):
    """Status and body of the response to one request; a document is bytes or JSON."""
    body = document if type(document) is bytes else b"" if document is None else json.dumps(document).encode()
    transport = server.connect()
    transport.feed(
        b"%b %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (method.encode(), path.encode(), len(body), body)
    )
    ((status, _, answer),) = transport.responses()
    return status, json.loads(answer) if answer else None


def refusal(server, method, path, document=None):
    status, body = ask(server, method, path, document)
    assert set(body) == {"error"}
    return status, body["error"]


def test_every_endpoint_is_served():
    """Each has either an exchange of its own or an answer."""
    for endpoint in Endpoint:
        assert (exchange_of(endpoint) is EndpointExchange) == (endpoint in ANSWERS or endpoint in READINESS), endpoint


class TestMemory:
    @pytest.fixture
    def memory(self, server):
        server.state.client_memory = Rows()
        return server.state.client_memory

    def test_register(self, server, memory):
        """Offsets may be left out."""
        path = f"{SYSTEM}/region/my%20region/register"
        assert ask(server, "POST", path, {"key": "/k", "offset": 8, "byte_size": 64}) == (200, None)
        assert ask(server, "POST", path, {"key": "/k", "byte_size": 2**64 - 1}) == (200, None)
        assert memory == [("register", "my region", "/k", 8, 64), ("register", "my region", "/k", 0, 2**64 - 1)]

    def test_register_cuda(self, server, memory):
        """A handle is base64. It is answered when the memory is open, before what was asked after it."""
        document = {"raw_handle": {"b64": base64.b64encode(bytes(64)).decode()}, "device_id": 1, "byte_size": 64}
        body = json.dumps(document).encode()
        head = b"POST %b/region/r/register HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (CUDA.encode(), len(body))

        async def register(failure, status):
            opened = asyncio.Future()
            memory.said = asyncio.wait_for(opened, None)
            async with asyncio.TaskGroup() as server.state.tasks:
                transport = server.connect()
                transport.feed(head + body + b"GET /v2/health/live HTTP/1.1\r\n\r\n")
                await asyncio.sleep(0)
                assert transport.sent == b""
                if failure is None:
                    opened.set_result(None)
                else:
                    opened.set_exception(failure)
            assert transport.statuses() == [status, 200]

        asyncio.run(register(None, 200))
        assert memory == [("register_cuda", "r", bytes(64), 1, 64)]
        asyncio.run(register(InferenceError("no", Code.INVALID_ARG), 400))

    def test_unregister(self, server, memory):
        """One region, or all of them; a body means nothing."""
        assert ask(server, "POST", f"{SYSTEM}/region/r/unregister", b"any") == (200, None)
        assert ask(server, "POST", f"{SYSTEM}/unregister") == (200, None)
        assert memory == [("unregister", "r"), ("unregister", "")]

    @pytest.mark.parametrize(("path", "name"), [("/region/r", "r"), ("", "")])
    def test_unregister_cuda(self, server, memory, path, name):
        """One region, or all of them, is answered when the memory is closed."""

        async def unregister():
            closed = asyncio.Future()
            memory.said = asyncio.wait_for(closed, None)
            async with asyncio.TaskGroup() as server.state.tasks:
                transport = server.connect()
                transport.feed(b"POST %b/unregister HTTP/1.1\r\nContent-Length: 3\r\n\r\nany" % (CUDA + path).encode())
                await asyncio.sleep(0)
                assert transport.sent == b""
                closed.set_result(None)
            assert transport.statuses() == [200]

        asyncio.run(unregister())
        assert memory == [("unregister_cuda", name)]

    @pytest.mark.parametrize(
        ("document", "message"),
        [
            (b"", "failed to parse the request JSON buffer: The document is empty. at 0"),
            ([], "the request must be a JSON object, got a list"),
            ({}, "Shared memory register request has no 'key' field"),
            ({"key": "k"}, "Shared memory register request has no 'byte_size' field"),
            ({"key": 1, "byte_size": 1}, "'key' must be a string, got an integer"),
            ({"key": "k", "byte_size": -1}, f"'byte_size' must be an integer from 0 to {2**64 - 1}, got -1"),
            ({"key": "k", "byte_size": True}, f"'byte_size' must be an integer from 0 to {2**64 - 1}, got true"),
            (
                {"key": "k", "byte_size": 1, "offset": None},
                f"'offset' must be an integer from 0 to {2**64 - 1}, got null",
            ),
        ],
    )
    def test_system_memory_that_makes_no_sense(self, server, memory, document, message):
        """Any other body than a registration is the client's mistake."""
        assert refusal(server, "POST", f"{SYSTEM}/region/r/register", document) == (400, message)
        assert memory == []

    @pytest.mark.parametrize(
        ("document", "message"),
        [
            ({}, "Shared memory register request has no 'raw_handle' field"),
            ({"raw_handle": {"b64": ""}}, "Shared memory register request has no 'device_id' field"),
            ({"raw_handle": {"b64": ""}, "device_id": 0}, "Shared memory register request has no 'byte_size' field"),
            ({"raw_handle": "any"}, "'raw_handle' must be an object whose 'b64' is a string"),
            ({"raw_handle": {}}, "'raw_handle' must be an object whose 'b64' is a string"),
            ({"raw_handle": {"b64": "!"}}, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"),
        ],
    )
    def test_cuda_memory_that_makes_no_sense(self, server, memory, document, message):
        """So it is here."""
        assert refusal(server, "POST", f"{CUDA}/region/r/register", document) == (400, message)
        assert memory == []


class TestSettings:
    def test_trace(self, server):
        """Settings are read and changed, of all models or of one; null clears."""
        status, before = ask(server, "GET", "/v2/trace/setting")
        assert (status, before["trace_rate"]) == (200, "1000")
        assert ask(server, "POST", "/v2/trace/setting", {"trace_rate": "7"})[1]["trace_rate"] == "7"
        path = "/v2/models/m/trace/setting"
        assert ask(server, "POST", path, {"trace_rate": "9", "trace_level": ["OFF"]})[1]["trace_rate"] == "9"
        assert ask(server, "GET", path)[1]["trace_rate"] == "9"
        assert ask(server, "POST", path, {"trace_rate": None})[1]["trace_rate"] == "7"
        assert ask(server, "POST", "/v2/trace/setting", {}) == ask(server, "GET", "/v2/trace/setting")
        unknown = (400, "Request for unknown model : nobody")
        assert refusal(server, "GET", "/v2/models/nobody/trace/setting") == unknown
        assert refusal(server, "POST", "/v2/models/nobody/trace/setting", {"trace_rate": "1"}) == unknown

    @pytest.mark.parametrize("value", [1, True, {}, [1], [["a"]]])
    def test_trace_of_other_types(self, server, value):
        """Triton has its trace settings as strings, whatever they are."""
        status, message = refusal(server, "POST", "/v2/trace/setting", {"trace_rate": value})
        assert status == 400
        assert message.startswith('trace setting "trace_rate" must be a string, a list of strings or null, got ')

    def test_logging(self, server):
        """Whose settings they are decides about them; null says nothing."""

        class Settings(Rows):
            said = {"log_info": True}

        server.state.log_settings = asked = Settings()
        assert ask(server, "GET", "/v2/logging") == (200, {"log_info": True})
        assert ask(server, "POST", "/v2/logging", {"log_info": False, "any": None}) == (200, {"log_info": True})
        assert asked == [("current",), ("update", {"log_info": False}), ("current",)]
        assert refusal(server, "POST", "/v2/logging", [])[0] == 400


class TestControl:
    @pytest.fixture
    def turn(self, server):
        """`turn(check)`: run `check` with a server whose control it tells what to do."""

        def run(check):
            async def within():
                server.state.control = Control()
                async with asyncio.TaskGroup() as server.state.tasks:
                    await check(server, server.state.control)

            asyncio.run(within())

        return run

    @staticmethod
    def post(path, document):
        body = json.dumps(document).encode()
        return b"POST %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (path, len(body), body)

    LOAD = b"/v2/repository/models/m/load"
    UNLOAD = b"/v2/repository/models/m/unload"

    def test_load(self, turn):
        """It is answered when it is done, before what was asked after it."""
        parameters = {"config": "{}", "file:1/model.py": "eA=="}

        async def check(server, control):
            transport = server.connect()
            transport.feed(self.post(self.LOAD, {"parameters": parameters}) + b"GET /v2/health/live HTTP/1.1\r\n\r\n")
            await asyncio.sleep(0)
            assert control.asked == [("load", "m", "{}", {"file:1/model.py": b"x"})]
            assert transport.sent == b""
            assert server.state.in_flight == 2
            control.outcome.set_result(None)
            await asyncio.sleep(0)
            assert [(status, body) for status, _, body in transport.responses()] == [(200, b"")] * 2
            assert server.is_idle()

        turn(check)

    @pytest.mark.parametrize("path", [LOAD, UNLOAD])
    def test_failure(self, turn, path):
        """A failure is answered with its message and the status for its code."""

        async def check(server, control):
            transport = server.connect()
            transport.feed(self.post(path, {}))
            await asyncio.sleep(0)
            control.outcome.set_exception(InferenceError("no", Code.UNAVAILABLE))
            await asyncio.sleep(0)
            assert [(status, json.loads(body)) for status, _, body in transport.responses()] == [(503, {"error": "no"})]

        turn(check)

    def test_unload(self, turn):
        """It says whether others go as well."""

        async def check(server, control):
            control.outcome.set_result(None)
            transport = server.connect()
            transport.feed(self.post(self.UNLOAD, {"parameters": {"unload_dependents": True}}))
            transport.feed(self.post(self.UNLOAD, {}))
            await asyncio.sleep(0)
            assert control.asked == [("unload", "m", True), ("unload", "m", False)]
            assert transport.statuses() == [200, 200]

        turn(check)

    def test_client_that_does_not_wait(self, turn):
        """The load goes on, and nobody is answered."""

        async def check(server, control):
            transport = server.connect()
            transport.feed(self.post(self.LOAD, {}))
            await asyncio.sleep(0)
            transport.lose()
            assert server.is_idle()
            control.outcome.set_result(None)
            await asyncio.sleep(0)
            assert transport.sent == b""
            assert server.is_idle()

        turn(check)

    def test_nonsense(self, turn):
        """A request that cannot be decoded is not begun."""

        async def check(server, control):
            transport = server.connect()
            transport.feed(self.post(self.LOAD, {"parameters": {"any": 1}}))
            assert transport.statuses() == [400]
            assert control.asked == []

        turn(check)


def test_head_has_no_body(server):
    """Neither where there is something nor where there is nothing."""
    transport = server.connect()
    transport.feed(b"HEAD /v2/health/live HTTP/1.1\r\n\r\nHEAD /nowhere HTTP/1.1\r\n\r\n")
    assert [(status, headers["content-length"]) for status, headers, _ in transport.responses()] == [
        (405, "0"), (404, "0"),
    ]  # fmt: skip
    assert not transport.closed

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests to a server, which is a stand-in that the test controls."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pyruntime.runtime.cli.commands.client import Refused, ServerClient, Unreachable, WrongUsage

JSON, EVENTS = "application/json", "text/event-stream; charset=utf-8"


@pytest.fixture
def server():
    """`answers` maps a path to status, type and body; `asked` has method, path and body of each, `headers` theirs."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            length = int(self.headers.get("Content-Length", 0))
            made.headers.append(self.headers)
            made.asked.append((self.command, self.path, self.rfile.read(length)))
            status, kind, body = made.answers.get(self.path, (404, JSON, b'{"error": "Not Found"}'))
            if status == 0:
                return  # it hangs up
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer

        def log_message(self, *args):
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.answers, made.asked, made.headers = {}, [], []
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture
def client(server):
    return ServerClient(f"127.0.0.1:{server.server_port}")


def refusal(step, *arguments):
    with pytest.raises(Refused) as caught:
        step(*arguments)
    return str(caught.value)


class TestUrl:
    @pytest.mark.parametrize("url", ["", "ftp://a", "http://", "//a", "unix:///a", "http:///v2"])
    def test_none(self, url):
        """A text that is not the URL of a server is refused."""
        with pytest.raises(WrongUsage, match=r"--url must be like http://localhost:8000, not"):
            ServerClient(url)

    @pytest.mark.parametrize("url", ["a:b", "http://a:99999"])
    def test_no_port(self, url):
        """A URL with an impossible port is refused."""
        with pytest.raises(WrongUsage, match=r"has no port that could be one"):
            ServerClient(url)

    def test_path(self, server):
        """A server may be behind a proxy that has it somewhere below."""
        server.answers["/below/v2"] = 200, JSON, b"{}"
        assert ServerClient(f"http://127.0.0.1:{server.server_port}/below/").get("/v2") == {}


class TestHeaders:
    @pytest.mark.parametrize("text", ["a-key: the value", "a-key:the value", "a-key=the value"])
    def test_sent(self, server, text):
        """A header goes with every request."""
        server.answers["/v2"] = 200, JSON, b"{}"
        ServerClient(f"127.0.0.1:{server.server_port}", [text]).get("/v2")
        assert server.headers[-1]["a-key"] == "the value"

    @pytest.mark.parametrize("text", ["", "a", ": b", "a b: c", "a: b\r\nc: d", "a: \u20ac"])
    def test_none(self, text):
        """A text that is not a header is refused."""
        with pytest.raises(WrongUsage, match=r"--header must be like 'name: value', not"):
            ServerClient("localhost", [text])


class TestAnswers:
    def test_get_and_post(self, server, client):
        """JSON both ways; a body may be empty."""
        server.answers |= {"/a": (200, JSON, b'{"b": 1}'), "/c": (200, JSON, b""), "/d": (200, JSON, b"[1]")}
        assert client.get("/a", "b") == {"b": 1}
        assert client.post("/c", {"x": [1]}) is None
        assert client.post("/d", {}) == [1]
        assert server.asked == [("GET", "/a", b""), ("POST", "/c", b'{"x": [1]}'), ("POST", "/d", b"{}")]

    @pytest.mark.parametrize(
        ("answer", "said"),
        [
            ((400, JSON, b'{"error": "no such thing"}'), "no such thing"),
            ((502, "text/html", b"<h1>Bad\n Gateway</h1>"), "502 Bad Gateway: <h1>Bad Gateway</h1>"),
            ((503, JSON, b""), "503 Service Unavailable"),
            ((400, JSON, b"[]"), "400 Bad Request: []"),
            ((400, JSON, b'{"message": 1}'), '400 Bad Request: {"message": 1}'),
            ((301, JSON, b""), "301 Moved Permanently"),
            ((500, "text/html", b"x" * 1000), f"500 Internal Server Error: {'x' * 200}"),
        ],
    )
    def test_errors(self, server, client, answer, said):
        """The message is the server's error, or as much of the response as can be shown."""
        server.answers["/a"] = answer
        assert refusal(client.get, "/a") == said

    @pytest.mark.parametrize("body", [b"", b"# HELP", b"\xff", b"[]", b'{"a": 1}', b"null"])
    def test_other_servers(self, server, client, body):
        """A response that pyruntime would not send is reported as that of another server."""
        server.answers |= {"/v2": (200, JSON, body), "/v2/repository/index": (200, JSON, body)}
        said = f"{client.url} does not answer as a server does; is it the port of its HTTP?"
        assert refusal(client.get, "/v2", "b") == said
        assert body == b"[]" or refusal(client.index) == said

    def test_nobody(self, reserve_ports):
        """There is no server."""
        with reserve_ports(1) as (port,):
            said = rf"no server answers at http://127.0.0.1:{port}: Connection refused"
            with pytest.raises(Unreachable, match=said):
                ServerClient(f"127.0.0.1:{port}").get("/v2")

    def test_one_that_hangs_up(self, server, client):
        """It is there, and says nothing."""
        server.answers["/v2"] = 0, "", b""
        with pytest.raises(Unreachable, match="does not answer as a server does, or hung up"):
            client.get("/v2")

    def test_one_that_is_silent(self):
        """It takes the connection and never answers: only a client with a limit gives up."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            client = ServerClient(f"127.0.0.1:{silent.getsockname()[1]}", (), 0.01)
            with pytest.raises(Unreachable, match=r" has not answered for 0.01 s$"):
                client.get("/v2")

    def test_no_tls(self, server):
        """A server may not speak it."""
        with pytest.raises(Unreachable, match="there is no TLS at https://127"):
            ServerClient(f"https://127.0.0.1:{server.server_port}").get("/v2")


class TestStreams:
    def test_events(self, server, client):
        """Each as JSON; what else there is in a stream of events means nothing."""
        server.answers["/s"] = 200, EVENTS, b': hello\n\ndata: {"a": 1}\n\ndata:{"a": 2}\n\n'
        assert list(client.stream("/s", {"b": 1})) == [{"a": 1}, {"a": 2}]

    def test_an_error_as_an_event(self, server, client):
        """It is one all the same."""
        server.answers["/s"] = 400, EVENTS, b'data: {"error": "no"}\n\n'
        assert list(client.stream("/s", {})) == [{"error": "no"}]

    def test_no_stream(self, server, client):
        """A server may refuse the whole of it."""
        server.answers["/s"] = 404, JSON, b'{"error": "no"}'
        assert refusal(lambda: list(client.stream("/s", {}))) == "no"


class TestAbout:
    def ask(self, client, model):
        with client.about(model):
            client.get(f"/v2/models/{model}")

    def index(self, server, *names):
        server.answers["/v2/repository/index"] = 200, JSON, json.dumps([{"name": name} for name in names]).encode()

    def test_an_unknown_model(self, server, client):
        """The one that was meant is named, if there is one that comes near."""
        self.index(server, "add_sub", "other")
        assert refusal(self.ask, client, "addsub") == "Not Found; did you mean add_sub?"
        assert refusal(self.ask, client, "xyz") == "Not Found"

    def test_a_model_that_is_there(self, server, client):
        """If the model exists, the original error is shown."""
        self.index(server, "add_sub")
        assert refusal(self.ask, client, "add_sub") == "Not Found"

    def test_no_index(self, client):
        """If the server does not list its models, the original error is shown."""
        assert refusal(self.ask, client, "m") == "Not Found"

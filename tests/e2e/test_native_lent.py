# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Connections of HTTP that are lent to instances of C++ models, as clients see them: they should not notice.

A connection is lent whose client has sent the same known request several times in a row. Whether it is can be seen from
outside: the instance's thread waits for it, and the event loop does not.
"""

import gzip
import json
import os
import random
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
from prometheus_client.parser import text_string_to_metric_families

from .harness.waiting import LIMIT_S

# No connection is lent without it.
pytestmark = pytest.mark.fast_path

# The actions of steer.cc, by the first value of a request.
HOLD, ERROR, EXECUTE_FAILS, THROW, CALL, SLOW, SHORTER, RELEASE_FIRST, OTHER_THREAD, LOST = range(-1, -11, -1)
# More requests than any connection takes to be lent that does nothing else.
MANY = 500


def watched(server):
    """The inodes that the threads of a server's instances wait for."""
    mine = Path(f"/proc/{server.process.pid}")
    polls = []
    for entry in (mine / "fd").iterdir():
        with suppress(FileNotFoundError):  # one that has just been closed
            if os.readlink(entry) == "anon_inode:[eventpoll]":
                lines = (mine / "fdinfo" / entry.name).read_text().splitlines()
                polls.append({int(line.partition(" ino:")[2].split()[0], 16) for line in lines if "tfd:" in line})
    inodes = {inode for (_, _, state), inode in sockets(server).items() if state == "0A"}
    # The event loop is who listens.
    return set().union(*[poll for poll in polls if not poll & inodes])


def sockets(server):
    """The inodes of a server's sockets, by its own port, the other's, and the state."""
    found = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, here, there, state, _, _, _, _, _, inode, *_ = line.split()
        if int(here.partition(":")[2], 16) == server.port:
            found[server.port, int(there.partition(":")[2], 16), state] = int(inode)
    return found


def are_lent(server, *clients):
    """For each client whether its connection is lent now."""
    inodes = {there: inode for (_, there, _), inode in sockets(server).items()}
    lent = watched(server)
    return [inodes.get(client.sock.getsockname()[1]) in lent for client in clients]


def is_lent(server, client):
    return are_lent(server, client)[0]


def lend(server, client, request):
    """Have a connection lent: the last response to a request."""
    for _ in range(MANY):
        answers = client.ask(request)
        if is_lent(server, client):
            return answers[0]
    raise AssertionError("the connection is not lent")


def lend_all(server, clients, request):
    """Have connections lent, all of them at a time: the server may take back any of them whenever it looks at them."""
    for _ in range(MANY):
        for client in clients:
            lend(server, client, request)
        if all(are_lent(server, *clients)):
            return
    raise AssertionError("the connections are not lent at a time")


def hold_up(server, raw, wait_until, hold, client, waiting, *behind):
    """Have an instance hold a request of `client`, in front of those `behind` it, and not come to one of `waiting`.

    Both connections are lent then. If the server has taken back one of them all of it is done once more.
    """
    for turn in range(MANY):
        lend_all(server, (client, waiting), raw.infer("steer", 1, 2))
        hold.touch()
        client.send(raw.infer("steer", HOLD, 2), *behind)
        wait_until(lambda: server.log.count("steer: held") == turn + 1)  # noqa: B023
        waiting.send(raw.infer("steer", 5, 6))
        if all(are_lent(server, client, waiting)):
            return
        hold.unlink()
        assert {each.read()[0] for each in (waiting, client, *[client] * len(behind))} == {200}
    raise AssertionError("the connections are not lent at a time")


def descriptors(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def ran_ns(task):
    """How long a thread has run, in nanoseconds."""
    return int((task / "schedstat").read_text().split()[0])


def change(folder):
    """Have the next `load` of a model load it anew."""
    path = folder / "config.pbtxt"
    text = path.read_text()
    path.write_text(text + f'parameters {{ key: "{len(text)}" value {{ string_value: "" }} }}\n')


def metric(server, name, model):
    """The value of a metric of a model that has one version."""
    text = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in (name, f"{name}_total") and (sample.labels["model"], sample.labels["version"]) == (
                model,
                "1",
            ):
                return sample.value
    raise AssertionError(f"there is no {name} of {model}")


@pytest.fixture(scope="module")
def backends(install_backends):
    return f"--backend-directory={install_backends('identity', 'misuse', 'steer')}"


@pytest.fixture
def start(model, serve, backends, raw):
    """Start a server of an echo, of a model that requests steer, and of others: {name: config}."""

    def start(*options, **configs):
        for name, text in ({"echo": raw.config("identity"), "steer": raw.config("steer")} | configs).items():
            model(name, None, text)
        return serve(backends, *options)

    return start


@pytest.fixture(scope="module")
def server(tmp_path_factory, serving, write_model, backends, raw):
    """A server whose models tests may send anything to."""
    repository = tmp_path_factory.mktemp("lent")
    texts = {
        "echo": raw.config("identity"),
        "other": raw.config("identity"),
        "steer": raw.config("steer"),
        "exact": raw.config("identity"),
        "both": raw.config("identity"),
        "alone": raw.config("identity"),
        "rows": raw.config("identity", more="max_batch_size: 8\n"),
        "two": raw.config("identity", more="instance_group [ { count: 2 } ]\n"),
        "batched": raw.config("identity", more="max_batch_size: 8\ndynamic_batching { }\n"),
        "isolated": raw.config("identity", EXECUTION_MODE="process"),
        "slow": raw.config("identity", EXECUTE_DELAY_MS="2"),
    }
    for name in ("", "error_after_release", "error_after_response", "send_null", "final_twice"):
        texts[f"misuse_{name}"] = raw.config("misuse", "1", MISUSE=name)
    for action in range(LOST, HOLD):
        texts[f"steer{action}"] = raw.config("steer")
    for name, text in texts.items():
        write_model(repository, name, None, text)
    with serving(repository, backends) as server:
        yield server


@pytest.fixture
def connect(raw):
    """`connect(server)`: a client, which is closed at the end."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(closing(raw.Client(server)))


@pytest.fixture
def client(server, connect):
    return connect(server)


def rows_of(raw, *values):
    """A request of two rows."""
    document, body = raw.body_of(values)
    size = 4 * len(values)
    shaped = document.replace(b'"shape": [%d]' % len(values), b'"shape": [2, %d]' % (len(values) // 2))
    return raw.post("rows", shaped + body[-size:], f"Inference-Header-Content-Length: {len(shaped)}")


class TestWhich:
    """Which connections are lent."""

    @pytest.mark.parametrize("model", ["echo", "steer", "misuse_"])
    def test_lent(self, server, client, raw, model):
        """Those of clients that send the same again and again; they notice nothing."""
        first = client.ask(raw.infer(model, 1))[0]
        assert not is_lent(server, client)
        assert lend(server, client, raw.infer(model, 1)) == first
        assert {client.ask(raw.infer(model, 1))[0] for _ in range(100)} == {first}

    @pytest.mark.parametrize("model", ["two", "isolated", "slow"])
    def test_not_lent(self, server, client, raw, model):
        """Where a request may have to go elsewhere, or takes so long that a client may give up."""
        for number in range(100):
            assert raw.values_of(client.ask(raw.infer(model, number))[0]) == [number]
            assert not is_lent(server, client)

    def test_batched(self, server, client, raw):
        """Connections of a model with dynamic batching are not lent."""
        request = rows_of(raw, 1, 2, 3, 4).replace(b"/rows/", b"/batched/")
        for _ in range(100):
            assert raw.values_of(client.ask(request)[0]) == [1, 2, 3, 4]
            assert not is_lent(server, client)

    def test_pipelined(self, server, client, raw):
        """Connections of clients that pipeline are not lent."""
        for _ in range(50):
            client.ask(raw.infer("echo", 1), raw.infer("echo", 2), raw.infer("echo", 3))
            assert not is_lent(server, client)

    def test_idle(self, server, connect, wait_until, raw):
        """The server soon reads an idle connection itself again, so that it notices clients that are gone."""
        clients = [connect(server) for _ in range(4)]
        request = raw.infer("echo", 3, 4)
        for client, part in zip(clients, (0, 1, 60, -1), strict=True):
            lend(server, client, raw.infer("echo", 1, 2))
            client.send(request[:part])
        wait_until(lambda: not any(are_lent(server, *clients)))
        for client, part in zip(clients, (0, 1, 60, -1), strict=True):
            client.send(request[part:])
            assert raw.values_of(client.read()) == [3, 4]
        lend(server, client, raw.infer("echo", 1, 2))

    def test_slower(self, server, client, raw):
        """The server soon reads a slow connection itself again, and lends it when it is quick again."""
        lend(server, client, raw.infer("steer", 1, 2))
        while is_lent(server, client):
            assert raw.values_of(client.ask(raw.infer("steer", SLOW, 2))[0]) == [SLOW, 2]
        for _ in range(20):
            assert raw.values_of(client.ask(raw.infer("steer", SLOW, 2))[0]) == [SLOW, 2]
            assert not is_lent(server, client)
        lend(server, client, raw.infer("steer", 1, 2))


class TestAnswers:
    """Responses on lent connections."""

    @pytest.mark.parametrize("count", [1, 2, 7, 64, 200])
    def test_bursts(self, server, client, raw, count):
        """Each has its own contents, in order, however many are sent at a time."""
        pairs = [(number, -number) for number in range(count)]
        for _ in range(10):  # the server may have taken it back for another reason
            lend(server, client, raw.infer("echo", 0, 0))
            answers = client.ask(*[raw.infer("echo", *pair) for pair in pairs])
            assert [raw.values_of(each) for each in answers] == [list(pair) for pair in pairs]
            if is_lent(server, client):
                break
        else:
            pytest.fail("a burst ends the lending")

    @pytest.mark.parametrize("run", [1, 4, 5, 9, 40])
    def test_alternating(self, server, client, raw, run):
        """Runs of requests to different models, with different documents or heads."""
        kinds = [
            lambda number: raw.infer("echo", number, 2),
            lambda number: raw.infer("other", number, 2),
            lambda number: raw.infer("echo", number, 2, 3),
            lambda number: raw.infer("steer", number, 2),
            lambda number: raw.infer("echo", number, 2, lines=["X-Any: thing"]),
        ]
        for number in range(400):
            request = kinds[number // run % len(kinds)](number)
            assert raw.values_of(client.ask(request)[0])[:2] == [number, 2]

    def test_rows(self, server, client, wait_until, raw):
        """Rows are counted as such."""
        for _ in range(100):
            assert raw.values_of(client.ask(rows_of(raw, 1, 2, 3, 4))[0]) == [1, 2, 3, 4]
        wait_until(lambda: raw.counts(server, "rows") == (100, 0, 200, 100))

    def test_in_pieces(self, server, client, raw):
        """A request may be cut anywhere."""
        request = raw.infer("echo", 3, 4)
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        was_lent = 0
        for cut in range(1, len(request)):
            lend(server, client, request)
            client.send(request[:cut])
            assert server.request("GET", "/v2/health/live").status == 200  # it has had time to read
            was_lent += is_lent(server, client)
            client.send(request[cut:])
            assert raw.values_of(client.read()) == [3, 4]
        assert was_lent > len(request) // 2

    def test_byte_by_byte(self, server, client, raw):
        """Requests may come byte by byte, also behind another one."""
        request = raw.infer("echo", 3, 4)
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lend(server, client, request)
        for byte in raw.infer("echo", 5, 6) + request:
            client.send(bytes([byte]))
        assert [raw.values_of(client.read()) for _ in range(2)] == [[5, 6], [3, 4]]

    @pytest.mark.parametrize("cut", [0, 1, 60, -10])
    @pytest.mark.parametrize(
        "name", ["id", "json", "gzip", "encoded", "chunked", "expect", "wrong", "longer", "unknown", "get", "trace"]
    )
    def test_others(self, server, connect, raw, name, cut):
        """Another request is answered as on any connection, after those before it, also if it comes in pieces."""
        client, plain = connect(server), connect(server)
        document, body = raw.body_of([5, 6])
        in_json = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [2], "data": [7, 8]}]}
        lead = f"Inference-Header-Content-Length: {len(document)}"
        known = raw.infer("echo", 3, 4)
        other = {
            "id": raw.infer("echo", 3, 4, id="x"),
            "json": raw.post("echo", json.dumps(in_json).encode()),
            "gzip": raw.post("echo", gzip.compress(body), "Content-Encoding: gzip", lead),
            "encoded": raw.infer("echo", 3, 4, lines=["Accept-Encoding: gzip"]),
            "chunked": raw.chunked("echo", 5, 6),
            "expect": raw.infer("echo", 3, 4, lines=["Expect: none"]),
            "wrong": known.replace(b"INPUT0", b"INPUT1"),
            "longer": raw.infer("echo", *range(2000)),
            "unknown": raw.infer("nothing", 3, 4),
            "get": b"GET /v2/models/echo/config HTTP/1.1\r\nHost: x\r\n\r\n",
            "trace": b"GET /v2/trace/setting HTTP/1.1\r\nHost: x\r\n\r\n",
        }[name]
        expected, usual = plain.ask(other)[0], plain.ask(known)[0]
        for _ in range(3):
            lend(server, client, known)
            client.send(known, known, other[:cut] if cut else b"")
            assert [client.read(), client.read()] == [usual, usual]
            client.send(other[cut:], known, other, known)
            assert [client.read() for _ in range(4)] == [expected, usual, expected, usual]

    def test_a_large_body(self, server, client, raw):
        """The server completes the body if it is too large for one read."""
        values = [*range(1 << 18)]
        for _ in range(3):
            lend(server, client, raw.infer("echo", 1, 2))
            assert raw.values_of(client.ask(raw.infer("echo", *values))[0]) == values

    @pytest.mark.parametrize("garbage", [b"garbage\r\n\r\n", b"\x16\x03\x01\0\0", b"POST / HTTP/9.9\r\n\r\n"])
    def test_garbage(self, server, connect, raw, garbage):
        """Garbage is refused, after the responses before it, and the connection is closed."""
        plain = connect(server)
        expected = plain.ask(garbage)[0]
        for _ in range(5):
            client = connect(server)
            lend(server, client, raw.infer("echo", 1, 2))
            client.send(raw.infer("echo", 3, 4), garbage)
            assert raw.values_of(client.read()) == [3, 4]
            assert client.read() == expected
            assert client.stream.read() == b""

    def test_the_last_one(self, server, client, raw):
        """A request may say that it is the last."""
        lend(server, client, raw.infer("echo", 1, 2))
        client.send(raw.infer("echo", 3, 4), raw.infer("echo", 5, 6, lines=["Connection: close"]))
        assert raw.values_of(client.read()) == [3, 4]
        answer = client.read()
        assert raw.values_of(answer) == [5, 6]
        assert b"connection: close" in answer[1].lower()
        assert client.stream.read() == b""

    def test_a_client_that_does_not_read(self, server, connect, raw):
        """Responses wait for the client, in order, while other clients are served."""
        client, other = connect(server), connect(server)
        values = [7] * 1000
        lend(server, client, raw.infer("echo", *values))
        count = 4000  # more than sockets hold

        def send():
            client.send(*[raw.infer("echo", number, *values[1:]) for number in range(count)])

        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(send)
            for number in range(200):
                assert raw.values_of(other.ask(raw.infer("echo", number, 2))[0]) == [number, 2]
            assert [raw.values_of(client.read())[0] for _ in range(count)] == [*range(count)]
            sending.result()

    @pytest.mark.parametrize("action", [ERROR, EXECUTE_FAILS, THROW, SHORTER, RELEASE_FIRST, OTHER_THREAD, LOST])
    def test_odd_responses(self, server, connect, wait_until, raw, action):
        """Every response of a backend is the same as without lending, in order, and is counted."""
        client, plain = connect(server), connect(server)
        request, odd = raw.infer(f"steer{action}", 1, 2), raw.infer(f"steer{action}", action, 2)
        usual, expected = plain.ask(request)[0], plain.ask(odd)[0]
        counts = lambda: raw.counts(server, f"steer{action}")[:2]  # noqa: E731
        wait_until(lambda: sum(counts()) == 2)
        fails = counts()[1]  # 1 if it counts as one
        total = 2
        for _ in range(5):
            while not is_lent(server, client):
                assert client.ask(request)[0] == usual
                total += 1
            assert client.ask(request, odd, odd, request) == [usual, expected, expected, usual]
            total += 4
        fails *= 11
        wait_until(lambda: counts() == (total - fails, fails))

    @pytest.mark.parametrize("name", ["error_after_release", "error_after_response", "send_null", "final_twice"])
    def test_misuse(self, client, raw, name):
        """Backends that do more than they should answer the same each time."""
        assert len({client.ask(raw.infer(f"misuse_{name}", 1))[0] for _ in range(100)}) == 1


class TestCounts:
    """Statistics and metrics."""

    def test_exact(self, server, connect, wait_until, raw):
        """Each of thousands of requests counts once in all metrics, whether Python or an instance reads it."""
        clients, rounds = 8, 500

        def ask(number):
            client = connect(server)
            for turn in range(rounds):
                # One that is not like the others, now and then.
                more = {"id": "x"} if turn % 200 == 20 * number else {}
                assert raw.values_of(client.ask(raw.infer("exact", number, turn, **more))[0]) == [number, turn]

        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(ask, range(clients)))
        total = clients * rounds
        wait_until(lambda: raw.counts(server, "exact") == (total, 0, total, total))
        for name, value in (
            ("request_success", total),
            ("request_failure", 0),
            ("count", total),
            ("exec_count", total),
        ):
            assert metric(server, f"nv_inference_{name}", "exact") == value
        assert metric(server, "nv_inference_pending_request_count", "exact") == 0

    def test_metrics_alone(self, server, client, wait_until, raw):
        """Metrics are up to date without a request for statistics."""
        total = 100
        while not is_lent(server, client):
            client.ask(raw.infer("alone", 1, 2))
            total += 1
        client.teach(raw.infer("alone", 1, 2), count=100)
        wait_until(lambda: metric(server, "nv_inference_request_success", "alone") == total)

    def test_times(self, server, client, raw):
        """They are those of the requests, whenever they are read, also if a backend reports none."""
        for model in ("echo", "misuse_"):
            lend(server, client, raw.infer(model, 1))
            for _ in range(300):
                client.ask(raw.infer(model, 1))
            (statistics,) = json.loads(server.request("GET", f"/v2/models/{model}/stats").body)["model_stats"]
            times = {name: each["ns"] for name, each in statistics["inference_stats"].items()}
            parts = ("queue", "compute_input", "compute_infer", "compute_output")
            assert 0 < sum(times[name] for name in parts) <= times["success"]

    def test_both_protocols(self, server, connect, wait_until, raw):
        """Clients of gRPC share the instance with clients that it reads by itself."""
        rounds = 300

        def ask(number):
            client = connect(server)
            for turn in range(rounds):
                assert raw.values_of(client.ask(raw.infer("both", number, turn))[0]) == [number, turn]

        def call(number):
            with server.grpc() as client:
                tensor = tritonclient.grpc.InferInput("INPUT0", [2], "INT32")
                for turn in range(rounds):
                    tensor.set_data_from_numpy(np.array([number, turn], np.int32))
                    result = client.infer("both", [tensor])
                    assert result.as_numpy("OUTPUT0").tolist() == [number, turn]

        with ThreadPoolExecutor(6) as pool:
            for each in [pool.submit(what, number) for number in range(3) for what in (ask, call)]:
                each.result()
        total = 6 * rounds
        wait_until(lambda: raw.counts(server, "both") == (total, 0, total, total))


class TestObserved:
    """Settings that change while connections are lent apply to the next request."""

    def test_traces(self, start, connect, tmp_path, raw):
        """Each request has its trace while tracing is on."""
        path = tmp_path / "traces"
        server = start(f"--trace-config=triton,file={path}", "--trace-config=rate=1", "--trace-config=count=-1")
        clients = [connect(server) for _ in range(3)]
        expected = 0

        def switch(level, model=""):
            body = json.dumps({"trace_level": [level]}).encode()
            assert server.request("POST", f"/v2{model}/trace/setting", body).status == 200

        for model in ("", "/models/echo"):
            for count in (1, 2, 7):
                lend_all(server, clients, raw.infer("echo", 1, 2))
                switch("TIMESTAMPS", model)
                for client in clients:
                    client.teach(raw.infer("echo", 1, 2), count=count)
                    assert not is_lent(server, client)
                switch("OFF", model)
                expected += count * len(clients)
        server.stop()
        starts = [each for each in json.loads(path.read_bytes()) if each.get("model_name") == "echo"]
        assert len(starts) == expected

    def test_log(self, start, connect, wait_until, raw):
        """Each request has its line while lines are verbose, on whichever connection they were enabled."""
        server = start()
        client, other = connect(server), connect(server)
        expected = 0

        def switch(level, asked):
            body = json.dumps({"log_verbose_level": level}).encode()
            lines = ["POST /v2/logging HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", "", ""]
            assert asked.ask("\r\n".join(lines).encode() + body)[0][0] == 200

        for asked in (client, other, client, other):
            for each in (client, other):
                lend(server, each, raw.infer("echo", 1, 2))
            switch(1, asked)
            client.teach(raw.infer("echo", 1, 2), count=7)
            other.teach(raw.infer("echo", 1, 2), count=2)
            switch(0, asked)
            expected += 9
        wait_until(lambda: server.log.count("POST /v2/models/echo/infer") == expected)

    def test_at_the_same_time(self, start, connect, tmp_path, wait_until, raw):
        """Clients of one instance all of whose next requests are others; the first has all connections called back."""
        server = start()
        busy = connect(server)
        hold = tmp_path / "steer" / "hold"
        for turn in range(20):
            with ExitStack() as stack:
                body = json.dumps({"log_format": ["ISO8601", "default"][turn % 2]}).encode()
                lines = ["POST /v2/logging HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", "", ""]
                clients = [stack.enter_context(closing(raw.Client(server))) for _ in range(8)]
                for client in clients:
                    lend(server, client, raw.infer("steer", 1, 2))
                held, setting, *others = clients
                hold.touch()
                held.send(raw.infer("steer", HOLD, 2))
                wait_until(lambda: server.log.count("steer: held") == turn + 1)  # noqa: B023
                # The instance comes to these when it is let go.
                setting.send("\r\n".join(lines).encode() + body)
                for number, client in enumerate(others):
                    client.send(raw.infer("steer", number, turn, 3))
                # The server has other things to do meanwhile.
                busy.send(*[b"GET /v2/models/echo/config HTTP/1.1\r\nHost: x\r\n\r\n"] * 60)
                hold.unlink()
                assert [busy.read()[0] for _ in range(60)] == [200] * 60
                assert raw.values_of(held.read()) == [HOLD, 2]
                assert setting.read()[0] == 200
                for number, client in enumerate(others):
                    assert raw.values_of(client.read()) == [number, turn, 3]


class TestLives:
    """Changes of models, clients and the server while connections are lent."""

    def test_the_next_one(self, start, connect, tmp_path, raw):
        """A request after a model was unloaded, or loaded, goes where it should."""
        server = start("--model-control-mode=explicit", "--load-model=echo")
        clients = [connect(server) for _ in range(4)]
        control = lambda what: server.request("POST", f"/v2/repository/models/echo/{what}").status  # noqa: E731
        for _ in range(5):
            for client in clients:
                lend(server, client, raw.infer("echo", 1, 2))
            change(tmp_path / "echo")
            assert control("load") == 200
            assert not any(are_lent(server, *clients))
            for number, client in enumerate(clients):
                assert raw.values_of(client.ask(raw.infer("echo", number, 2))[0]) == [number, 2]
            for client in clients:
                lend(server, client, raw.infer("echo", 1, 2))
            assert control("unload") == 200
            for client in clients:
                assert client.ask(raw.infer("echo", 1, 2))[0][0] in (400, 404)
            assert control("load") == 200
            for client in clients:
                assert raw.values_of(client.ask(raw.infer("echo", 1, 2))[0]) == [1, 2]

    def test_another_version(self, start, connect, tmp_path, raw):
        """Requests that name no version go to the newest as soon as it is there."""
        policy = "version_policy { all { } }\n"
        server = start("--model-control-mode=explicit", "--load-model=many", many=raw.config("identity", more=policy))
        client, named = connect(server), connect(server)
        version = lambda answer: json.loads(answer[2][:-8])["model_version"]  # noqa: E731
        by_name = raw.infer("many/versions/1", 1, 2)
        for newest in (2, 3, 4):
            assert version(lend(server, client, raw.infer("many", 1, 2))) == str(newest - 1)
            assert version(lend(server, named, by_name)) == "1"
            (tmp_path / "many" / str(newest)).mkdir()
            assert server.request("POST", "/v2/repository/models/many/load").status == 200
            assert version(client.ask(raw.infer("many", 1, 2))[0]) == str(newest)
            assert version(named.ask(by_name)[0]) == "1"
        lend(server, client, raw.infer("many", 1, 2))
        (tmp_path / "many" / "4").rmdir()
        assert server.request("POST", "/v2/repository/models/many/load").status == 200
        assert version(client.ask(raw.infer("many", 1, 2))[0]) == "3"

    def test_reloaded_under_load(self, start, connect, tmp_path, raw):
        """Clients that send all the time get a response to each request, or an error while the model is gone."""
        server = start("--model-control-mode=explicit", "--load-model=echo", "--load-model=steer")
        ended = threading.Event()

        def control(what):
            answer = server.request("POST", f"/v2/repository/models/echo/{what}")
            assert answer.status == 200, answer.body

        def ask(number):
            found = {}
            client = connect(server)
            turn = 0
            is_last = False
            while not is_last:
                is_last = ended.is_set()  # from then on the model is there
                answer = client.ask(raw.infer("echo", number, turn))[0]
                found[answer[0]] = found.get(answer[0], 0) + 1
                assert answer[0] in (400, 404, 503) or raw.values_of(answer) == [number, turn]
                turn += 1
            return found

        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(ask, number) for number in range(8)]
            try:
                for _ in range(10):
                    change(tmp_path / "echo")
                    control("load")
                for _ in range(10):
                    control("unload")
                    control("load")
            finally:
                ended.set()
            assert all(each.result()[200] for each in asked)
        assert raw.counts(server, "echo")[1] == 0
        assert "did not finish" not in server.log
        assert "could not be handled" not in server.log

    def test_unloaded_when_idle(self, start, connect, wait_until, raw):
        """A model that reads connections goes at once."""
        server = start("--model-control-mode=explicit")

        def states():
            return {each.get("state") for each in json.loads(server.request("POST", "/v2/repository/index").body)}

        load = lambda what: server.request("POST", f"/v2/repository/models/echo/{what}").status == 200  # noqa: E731
        clients = [connect(server) for _ in range(20)]
        for _ in range(4):
            assert load("load")
            for client in clients:
                lend(server, client, raw.infer("echo", 1, 2))
            assert load("unload")
            wait_until(lambda: states() <= {"UNAVAILABLE", None})
            for client in clients:
                assert client.ask(raw.infer("echo", 1, 2))[0][0] in (400, 404)
        assert "did not finish" not in server.log

    def test_unloaded_while_it_executes(self, start, connect, tmp_path, wait_until, raw):
        """The request under way is answered, and those that wait behind it are refused."""
        server = start("--model-control-mode=explicit", "--load-model=steer")
        client, waiting = connect(server), connect(server)
        hold = tmp_path / "steer" / "hold"
        hold_up(server, raw, wait_until, hold, client, waiting, raw.infer("steer", 3, 4))
        assert server.request("POST", "/v2/repository/models/steer/unload").status == 200
        assert waiting.read()[0] in (400, 404)
        hold.unlink()
        assert raw.values_of(client.read()) == [HOLD, 2]
        assert client.read()[0] in (400, 404)

    def test_terminated(self, start, connect, tmp_path, wait_until, raw):
        """The request under way is answered before the server exits, waiting ones are refused; it exits with 0."""
        server = start()
        client, waiting, idle, partial = (connect(server) for _ in range(4))
        hold = tmp_path / "steer" / "hold"
        for each in (idle, partial):
            lend(server, each, raw.infer("steer", 1, 2))
        partial.send(raw.infer("steer", 1, 2)[:-1])
        hold_up(server, raw, wait_until, hold, client, waiting)
        server.process.send_signal(signal.SIGTERM)
        assert waiting.read()[0] == 503
        wait_until(lambda: "in-flight requests to complete" in server.log)
        hold.unlink()
        assert raw.values_of(client.read()) == [HOLD, 2]
        for each in (client, waiting, idle, partial):
            assert each.stream.read() == b""
        assert server.wait_exit() == 0

    def test_terminated_under_load(self, start, connect, raw):
        """Each client gets answers up to some point, all of them whole."""
        server = start()
        sent = threading.Barrier(9)

        def ask(number):
            client = connect(server)
            lend(server, client, raw.infer("echo", number, 0))
            sent.wait(LIMIT_S)
            turn = 0
            with suppress(ConnectionError):
                while (answer := client.ask(raw.infer("echo", number, turn))[0])[0] == 200:
                    assert raw.values_of(answer) == [number, turn]
                    turn += 1
                assert answer[0] == 503
            return turn

        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(ask, number) for number in range(8)]
            sent.wait(LIMIT_S)
            server.process.send_signal(signal.SIGTERM)
            for each in asked:
                each.result()
            assert server.wait_exit() == 0

    @pytest.mark.parametrize("part", [0, 1, 60, -10, -1, None])
    @pytest.mark.parametrize("how", ["reset", "close", "half"])
    def test_clients_that_leave(self, server, connect, wait_until, raw, how, part):
        """Clients that leave at any time leave nothing behind; others are served. Of `part`, None is all of it."""
        other = connect(server)
        lend(server, other, raw.infer("echo", 1, 2))
        before = descriptors(server)
        leaving = [connect(server) for _ in range(5)]
        request = raw.infer("echo", 3, 4)
        for client in leaving:
            lend(server, client, request)
            if part != 0:
                client.send(request[:part])
            client.leave(how)
        for client in leaving if how == "half" else []:
            if part is None:
                assert raw.values_of(client.read()) == [3, 4]
            assert client.stream.read() == b""
            client.close()
        assert raw.values_of(other.ask(raw.infer("echo", 3, 4))[0]) == [3, 4]
        wait_until(lambda: descriptors(server) <= before)

    @pytest.mark.parametrize("how", ["reset", "half"])
    def test_clients_that_leave_a_slow_model(self, start, connect, tmp_path, wait_until, raw, how):
        """A backend soon sees the cancellation; clients leave nothing behind, and others are served."""
        server = start()
        hold = tmp_path / "steer" / "hold"
        other = connect(server)
        lend(server, other, raw.infer("steer", 1, 2))
        before = descriptors(server)
        leaving = [connect(server) for _ in range(5)]
        for client in leaving:
            lend(server, client, raw.infer("steer", 1, 2))
        hold.touch()
        for client in leaving:
            client.send(raw.infer("steer", HOLD, 2))
        wait_until(lambda: server.log.count("steer: held") >= 1)
        for client in leaving:
            client.leave(how)
        wait_until(lambda: server.log.count("steer: cancelled") >= 1)  # some may not even have begun
        hold.unlink()
        for client in leaving if how == "half" else []:
            assert client.read()[0] in (200, 400, 500)
            assert client.stream.read() == b""
            client.close()
        assert raw.values_of(other.ask(raw.infer("steer", 3, 4))[0]) == [3, 4]
        wait_until(lambda: descriptors(server) <= before)

    def test_many(self, server, connect, wait_until, raw):
        """A hundred idle connections cost nothing, and each can still be used."""
        clients = [connect(server) for _ in range(100)]
        other = connect(server)

        def have_all_lent():
            for client in clients:  # those that are already, too: it would be taken back if it did nothing for long
                client.teach(raw.infer("other", 1, 2), count=5)
            return all(are_lent(server, *clients))

        wait_until(have_all_lent)
        tasks = Path(f"/proc/{server.process.pid}/task")
        (instance,) = [task for task in tasks.iterdir() if (task / "comm").read_text().startswith("other_0")]
        threads = instance, tasks / str(server.process.pid)
        before = [*map(ran_ns, threads)]
        for number in range(300):
            assert raw.values_of(other.ask(raw.infer("echo", number, 2))[0]) == [number, 2]
        idle, busy = (ran_ns(task) - ran for task, ran in zip(threads, before, strict=True))
        assert idle * 10 < busy
        for number, client in enumerate(clients):
            client.send(raw.infer("other", number, -number))
        assert [raw.values_of(client.read()) for client in clients] == [[each, -each] for each in range(100)]

    def test_all_together(self, start, connect, wait_until, raw):
        """Clients that do all that, while connections are called back all the time: nothing is lost, or told twice."""
        server = start()
        odd = (ERROR, EXECUTE_FAILS, THROW, SLOW, SHORTER, RELEASE_FIRST, OTHER_THREAD)
        plain = connect(server)
        expected = {action: plain.ask(raw.infer("steer", action, 2))[0] for action in odd}
        wait_until(lambda: sum(raw.counts(server, "steer")[:2]) == len(odd))
        before = raw.counts(server, "steer")
        ended = threading.Event()

        def call_back():
            turn = 0
            while not ended.is_set():
                turn += 1
                body = json.dumps({"log_format": ["ISO8601", "default"][turn % 2]}).encode()
                assert server.request("POST", "/v2/logging", body).status == 200

        def ask(number):
            chance = random.Random(number)
            client = connect(server)
            client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            done = failed = 0
            for turn in range(150):
                actions = [1 + turn] * chance.choice((1, 5, 20))
                if chance.random() < 0.3:
                    actions += [chance.choice(odd), 7]
                requests = [raw.infer("steer", action, 2) for action in actions]
                if chance.random() < 0.5:  # one after the other
                    answers = [client.ask(request)[0] for request in requests]
                elif chance.random() < 0.5:
                    answers = client.ask(*requests)
                else:
                    data = b"".join(requests)
                    cut = chance.randrange(len(data))
                    client.send(data[:cut])
                    client.send(data[cut:])
                    answers = [client.read() for _ in requests]
                for action, answer in zip(actions, answers, strict=True):
                    assert answer == expected[action] if action in expected else raw.values_of(answer) == [action, 2]
                done += len(answers)
                failed += sum(status != 200 for status, _, _ in answers)
            return done, failed

        with ThreadPoolExecutor(7) as pool:
            calling_back = pool.submit(call_back)
            try:
                asked = [pool.submit(ask, number) for number in range(6)]
                done, failed = map(sum, zip(*[each.result() for each in asked], strict=True))
            finally:
                ended.set()
            calling_back.result()
        counted = before[0] + done - failed, before[1] + failed
        wait_until(lambda: raw.counts(server, "steer")[:2] == counted)
        assert "could not be handled" not in server.log

    @pytest.mark.parametrize("loaded", [True, False])
    def test_calls(self, start, connect, raw, loaded):
        """A model that begins to call another one, which there may not be."""
        models = ["--load-model=steer", "--load-model=echo", *(["--load-model=callee"] if loaded else [])]
        server = start("--model-control-mode=explicit", *models, callee=raw.config("identity"))
        client, other, plain = (connect(server) for _ in range(3))
        for each in (client, other):
            lend(server, each, raw.infer("steer", 1, 2))
        for turn in range(20):
            client.send(raw.infer("steer", 1, turn), raw.infer("steer", CALL, turn), raw.infer("steer", 2, turn))
            assert raw.values_of(other.ask(raw.infer("steer", 3, turn))[0]) == [3, turn]
            assert raw.values_of(client.read()) == [1, turn]
            answer = client.read()
            assert (raw.values_of(answer) == [CALL, turn]) if loaded else (answer[0] >= 400)
            assert raw.values_of(client.read()) == [2, turn]
        assert raw.values_of(plain.ask(raw.infer("steer", 4, 5))[0]) == [4, 5]

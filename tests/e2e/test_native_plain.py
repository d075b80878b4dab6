# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Plain requests to C++ models, as clients of HTTP see them.

They are read, and often answered, by native code. Clients notice no difference.
"""

import gzip
import json
import os
import signal
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from .harness.waiting import LIMIT_S

# After so many requests the instance is known to be quick.
TAUGHT = 100


def sockets_of(server):
    """How many sockets it has: those of each client are one, or two where native threads send in it too."""
    found = 0
    for entry in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # one that has just been closed
            found += os.readlink(entry).startswith("socket:")
    return found


@pytest.fixture(scope="module")
def backends(install_backends):
    return f"--backend-directory={install_backends('identity', 'misuse', 'gate', 'requests')}"


@pytest.fixture
def start(tmp_path, model, serve, backends, raw):
    """Start a server of an echo, and of other models: {name: config}."""

    def start(*options, **configs):
        for name, text in ({"echo": raw.config("identity")} | configs).items():
            model(name, None, text)
        return serve(backends, *options)

    return start


@pytest.fixture(scope="module")
def server(tmp_path_factory, serving, write_model, backends, raw):
    """A server whose models tests may send anything to."""
    repository = tmp_path_factory.mktemp("plain")
    texts = {
        "echo": raw.config("identity"),
        "exact": raw.config("identity"),
        "two": raw.config("identity", more="instance_group [ { count: 2 } ]\n"),
        "pair": raw.config("identity", more="instance_group [ { count: 2 } ]\n"),
        "rows": raw.config("identity", more="max_batch_size: 8\n"),
        "batched": raw.config("identity", more="max_batch_size: 8\ndynamic_batching { }\n"),
        "reshaped": raw.config("identity", "2").replace("dims: [ 2 ] }", "dims: [ 2 ] reshape { shape: [ 2, 1 ] } }"),
        "isolated": raw.config("identity", EXECUTION_MODE="process"),
    }
    for name in ("", "never_respond", "never_final", "error_after_release", "error_after_response", "send_null"):
        texts[f"misuse_{name}"] = raw.config("misuse", "1", MISUSE=name)
    texts["misuse_error"] = raw.config("misuse", "1", AT="execute", DO="error")
    texts["misuse_throw"] = raw.config("misuse", "1", AT="execute", DO="throw_exception")
    for name, text in texts.items():
        write_model(repository, name, None, text)
    with serving(repository, backends) as server:
        yield server


@pytest.fixture
def client(server, raw):
    with closing(raw.Client(server)) as made:
        yield made


class TestAnswers:
    """Responses to plain requests."""

    @pytest.mark.parametrize("model", ["echo", "two", "isolated", "misuse_"])
    def test_the_same_bytes(self, client, model, raw):
        """The first response is like the hundredth, byte for byte."""
        answers = [client.ask(raw.infer(model, 1))[0] for _ in range(TAUGHT)]
        assert len(set(answers)) == 1
        assert raw.values_of(answers[0]) == [1]

    @pytest.mark.parametrize("model", ["echo", "two"])
    def test_contents(self, client, model, raw):
        """Each has its own, however many are sent at a time."""
        client.teach(raw.infer(model, 0, 0))
        for count in (1, 2, 7, 64, 200):
            pairs = [(number, -number) for number in range(count)]
            answers = client.ask(*[raw.infer(model, *pair) for pair in pairs])
            assert [raw.values_of(each) for each in answers] == [list(pair) for pair in pairs]

    @pytest.mark.parametrize("model", ["rows", "batched"])
    def test_rows(self, client, server, wait_until, model, raw):
        """Models that batch count rows."""

        def request(*values):
            return raw.infer(model, *values).replace(b'"shape": [4]', b'"shape": [2, 2]')

        request = request(1, 2, 3, 4)
        document = request.split(b"\r\n\r\n")[1]
        lead = len(document) - 16
        lines = [f"POST /v2/models/{model}/infer HTTP/1.1", f"Content-Length: {len(document)}", "Host: x"]
        request = "\r\n".join([*lines, f"Inference-Header-Content-Length: {lead}", "", ""]).encode() + document
        for _ in range(10):
            assert raw.values_of(client.ask(request)[0]) == [1, 2, 3, 4]
        wait_until(lambda: raw.counts(server, model)[:3] == (10, 0, 20))

    def test_mixed(self, client, raw):
        """Requests with members, of other sizes, in JSON, compressed, in chunks, or wrong, between others, in order."""
        client.teach(raw.infer("echo", 1, 2))
        document, body = raw.body_of([5, 6])
        in_json = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [2], "data": [7, 8]}]}
        lead = f"Inference-Header-Content-Length: {len(document)}"
        plain = raw.infer("echo", 3, 4)
        others = [
            raw.infer("echo", 3, 4, id="x"),
            raw.infer("echo", 3, 4, id='"'),
            raw.infer("echo", 3, 4, parameters={"timeout": 1000, "binary_data_output": True}),
            raw.infer("echo", 3, 4, parameters={"own": 0.5, "binary_data_output": True}),
            raw.infer("echo", 3, 4, parameters={"sequence_id": 7, "sequence_start": True, "binary_data_output": True}),
            raw.infer("echo", 3, 4, outputs=[{"name": "OUTPUT0", "parameters": {"binary_data": True}}]),
            raw.infer("echo", 3, 4, outputs=[{"name": "OUTPUT0", "parameters": {"classification": 1}}]),
            raw.infer("echo", *range(500)),
            raw.post("echo", json.dumps(in_json).encode()),
            raw.post("echo", gzip.compress(body), "Content-Encoding: gzip", lead),
            raw.infer("echo", 3, 4, lines=["Accept-Encoding: gzip"]),
            raw.chunked("echo", 5, 6),
            raw.infer("echo", 3, 4).replace(b"INPUT0", b"INPUT1"),
            raw.infer("echo", 3, 4, 5),
            raw.infer("nothing", 3, 4),
        ]
        expected = [client.ask(each)[0] for each in others]
        assert [status for status, _, _ in expected] == [200] * 12 + [400, 200, 404]
        (usual,) = client.ask(plain)
        for _ in range(20):
            stream = [each for other in others for each in (plain, other, plain)]
            wanted = [each for other in expected for each in (usual, other, usual)]
            assert client.ask(*stream) == wanted

    @pytest.mark.parametrize("model", ["echo", "two"])
    def test_another_shape_each(self, client, server, wait_until, model, raw):
        """Each has its own answer, also while a native thread reads the connection, and is counted."""
        client.teach(raw.infer(model, 0), count=TAUGHT)
        before = raw.counts(server, model)
        for number in range(200):
            values = [*range(number, number + 1 + number * 37 % 800)]
            (answer,) = client.ask(raw.infer(model, *values, id=str(number)))
            assert raw.values_of(answer) == values
            assert f'"id":"{number}"'.encode() in answer[2]
        wait_until(lambda: raw.counts(server, model)[0] >= before[0] + 200)

    @pytest.mark.parametrize("cut", [1, 40, -20, -4, -1])
    def test_in_pieces(self, server, client, cut, raw):
        """A request that comes in two pieces is one."""
        client.teach(raw.infer("echo", 1, 2))
        request = raw.infer("echo", 3, 4)
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(20):
            client.send(request[:cut])
            assert server.request("GET", "/v2/health/live").status == 200  # it has had time to read
            client.send(request[cut:])
            assert raw.values_of(client.read()) == [3, 4]

    @pytest.mark.parametrize("name", ["error", "throw", "never_respond", "never_final"])
    def test_failures(self, client, server, wait_until, name, raw):
        """A backend that fails does so in the same words each time."""
        answers = {client.ask(raw.infer(f"misuse_{name}", 1))[0] for _ in range(20)}
        assert len(answers) == 1
        assert answers.pop()[0] >= 400
        wait_until(lambda: sum(raw.counts(server, f"misuse_{name}")[:2]) == 20)

    @pytest.mark.parametrize("name", ["error_after_release", "error_after_response", "send_null"])
    def test_odd_successes(self, client, name, raw):
        """Backends that do more than they should answer the same each time."""
        answers = client.teach(raw.infer(f"misuse_{name}", 1)) + client.teach(raw.infer(f"misuse_{name}", 1))
        assert answers[0] == answers[1]
        assert raw.values_of(answers[0]) == [1]

    def test_a_reshape(self, client, raw):
        """A response with a reshaped output is the same each time."""
        answers = {client.ask(raw.infer("reshaped", 1, 2))[0] for _ in range(10)}
        assert len(answers) == 1

    def test_parameters(self, client, raw):
        """They come back each time."""
        request = raw.infer("echo", 1, 2, parameters={"binary_data_output": True, "mine": 7})
        for status, _, body in [client.ask(request)[0] for _ in range(10)]:
            assert (status, json.loads(body[:-8])["parameters"]["mine"]) == (200, 7)


class TestCounts:
    """Statistics and metrics."""

    @pytest.mark.parametrize("is_pipelined", [False, True])
    def test_exact(self, server, client, wait_until, is_pipelined, raw):
        """Each request counts once, in all of them."""
        before = raw.counts(server, "exact")
        count = 300
        if is_pipelined:
            client.ask(*[raw.infer("exact", number) for number in range(count)])
        else:
            for number in range(count):
                client.ask(raw.infer("exact", number))
        expected = before[0] + count, before[1], before[2] + count, before[3] + count
        wait_until(lambda: raw.counts(server, "exact") == expected)
        metrics = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
        for name, value in (("request_success", 0), ("count", 2), ("exec_count", 3)):
            assert f'nv_inference_{name}{{model="exact",version="1"}} {expected[value]}\n' in metrics

    def test_times(self, server, client, raw):
        """They are those of the requests, whenever they are read, also if a backend reports none."""
        for model in ("echo", "misuse_"):
            client.teach(raw.infer(model, 1), count=300)
        for model in ("echo", "misuse_"):
            (statistics,) = json.loads(server.request("GET", f"/v2/models/{model}/stats").body)["model_stats"]
            times = {name: each["ns"] for name, each in statistics["inference_stats"].items()}
            parts = ("queue", "compute_input", "compute_infer", "compute_output")
            assert sum(times[name] for name in parts) <= times["success"]

    def test_two_instances(self, server, wait_until, raw):
        """Many clients of a model with two instances: each gets its own responses, and all requests are counted."""
        clients, rounds = 8, 150

        def ask(number):
            with closing(raw.Client(server)) as client:
                for turn in range(rounds):
                    size = 1 + (turn + number) % 5
                    burst = [raw.infer("pair", number, turn, each) for each in range(size)]
                    answers = client.ask(*burst)
                    assert [raw.values_of(each) for each in answers] == [[number, turn, each] for each in range(size)]
                return sum(1 + (turn + number) % 5 for turn in range(rounds))

        with ThreadPoolExecutor(clients) as pool:
            total = sum(pool.map(ask, range(clients)))
        wait_until(lambda: raw.counts(server, "pair") == (total, 0, total, total))


class TestObserved:
    """Settings that change while requests are plain apply to the next request."""

    def test_traces(self, start, tmp_path, raw):
        """Each request has its trace while tracing is on."""
        path = tmp_path / "traces"
        server = start(f"--trace-config=triton,file={path}", "--trace-config=rate=1", "--trace-config=count=-1")

        def switch(level):
            body = json.dumps({"trace_level": [level]}).encode()
            assert server.request("POST", "/v2/trace/setting", body).status == 200

        with closing(raw.Client(server)) as client:
            client.teach(raw.infer("echo", 1, 2))
            switch("TIMESTAMPS")
            assert {raw.values_of(client.ask(raw.infer("echo", 1, 2))[0])[0] for _ in range(7)} == {1}
            switch("OFF")
            client.teach(raw.infer("echo", 1, 2))
        server.stop()
        starts = [each for each in json.loads(path.read_bytes()) if each.get("model_name") == "echo"]
        assert len(starts) == 7

    def test_log(self, start, wait_until, raw):
        """Each request has its line while lines are verbose."""
        server = start()

        def switch(level):
            answer = server.request("POST", "/v2/logging", json.dumps({"log_verbose_level": level}).encode())
            assert answer.status == 200

        with closing(raw.Client(server)) as client:
            client.teach(raw.infer("echo", 1, 2))
            switch(1)
            client.teach(raw.infer("echo", 1, 2), count=7)
            switch(0)
            client.teach(raw.infer("echo", 1, 2))
        wait_until(lambda: server.log.count("POST /v2/models/echo/infer") == 7)

    def test_forwarded_headers(self, start, raw):
        """Forwarded headers reach the model each time."""
        server = start("--http-header-forward-pattern=^x-.*")
        with closing(raw.Client(server)) as client:
            client.teach(raw.infer("echo", 1, 2))
            for value in ("a", "b", "b", "b", "b"):
                ((_, _, body),) = client.ask(raw.infer("echo", 1, 2, lines=[f"x-user: {value}"]))
                assert json.loads(body[:-8])["parameters"] == {"x-user": value}

    def test_restricted(self, start, raw):
        """Only requests with the header are served, even if the request is plain."""
        server = start("--http-restricted-api=inference:key=word")
        with closing(raw.Client(server)) as client:
            allowed = raw.infer("echo", 1, 2, lines=["triton-http-protocol-key: word", "key: word"])
            client.teach(allowed, count=10)
            for _ in range(5):
                statuses = [status for status, _, _ in client.ask(raw.infer("echo", 1, 2), allowed)]
                assert statuses == [403, 200]


class TestLives:
    """Changes of models, clients and the server while requests are plain."""

    def test_reloaded(self, start, wait_until, raw):
        """Clients that send all the time get a response to each request, or an error while the model is gone."""
        server = start("--model-control-mode=explicit", "--load-model=echo")
        ended = threading.Event()

        def control(what):
            answer = server.request("POST", f"/v2/repository/models/echo/{what}")
            assert answer.status == 200, answer.body

        def ask(number):
            found = set()
            is_last = False
            with closing(raw.Client(server)) as client:
                while not is_last:
                    is_last = ended.is_set()  # from then on the model is there
                    answers = client.ask(*[raw.infer("echo", number, each) for each in range(3)])
                    for each, answer in enumerate(answers):
                        found.add(answer[0])
                        assert answer[0] in (400, 404, 503) or raw.values_of(answer) == [number, each]
            return found

        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(ask, number) for number in range(4)]
            try:
                for _ in range(8):
                    control("load")
                for _ in range(4):
                    control("unload")
                    control("load")
            finally:
                ended.set()
            assert all(200 in each.result() for each in asked)
        wait_until(lambda: raw.counts(server, "echo")[0] > 0)
        assert raw.counts(server, "echo")[1] == 0

    def test_unloaded_when_idle(self, start, wait_until, raw):
        """A model whose last requests were not counted yet is unloaded at once."""
        server = start("--model-control-mode=explicit", "--load-model=echo")
        with closing(raw.Client(server)) as client:
            client.teach(raw.infer("echo", 1, 2))
            assert server.request("POST", "/v2/repository/models/echo/unload").status == 200
            index = lambda: json.loads(server.request("POST", "/v2/repository/index").body)  # noqa: E731
            wait_until(lambda: index()[0].get("state") == "UNAVAILABLE")
            assert client.ask(raw.infer("echo", 1, 2))[0][0] == 404
            assert server.request("POST", "/v2/repository/models/echo/load").status == 200
            assert raw.values_of(client.teach(raw.infer("echo", 1, 2))[0]) == [1, 2]
        assert "did not finish" not in server.log

    def test_terminated(self, start, tmp_path, wait_until, raw):
        """The request under way is answered before the server exits, and it exits with 0."""
        server = start(gate=raw.config("gate"))
        hold = tmp_path / "gate" / "hold"
        with closing(raw.Client(server)) as client:
            client.teach(raw.infer("gate", 1, 2), count=5)
            hold.touch()
            client.send(raw.infer("gate", 3, 4))
            wait_until(lambda: server.log.count("gate: 1 requests") == 6)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "in-flight requests to complete" in server.log)
            hold.unlink()
            status, _, body = client.read()
            assert (status, body[-8:]) == (200, struct.pack("<2i", 3, 4))
            assert server.wait_exit() == 0

    def test_terminated_under_load(self, start, raw):
        """Each client gets answers up to some point, all of them whole."""
        server = start()
        sent = threading.Barrier(5)

        def ask(number):
            with closing(raw.Client(server)) as client:
                client.teach(raw.infer("echo", number, 0), count=20)
                turn = 0
                with suppress(ConnectionError):
                    while (answer := client.ask(raw.infer("echo", number, turn))[0])[0] == 200:
                        assert raw.values_of(answer) == [number, turn]
                        turn += 1
                        if turn == 1:
                            sent.wait(LIMIT_S)
                    assert answer[0] == 503
                return turn

        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(ask, number) for number in range(4)]
            sent.wait(LIMIT_S)
            server.process.send_signal(signal.SIGTERM)
            assert all(each.result() for each in asked)
            assert server.wait_exit() == 0

    @pytest.mark.parametrize("how", ["reset", "close", "half"])
    def test_clients_that_leave(self, start, tmp_path, wait_until, how, raw):
        """A backend sees the cancellation; clients leave nothing behind, and others are served."""
        server = start(gate=raw.config("gate"))
        hold = tmp_path / "gate" / "hold"
        before = sockets_of(server)
        with closing(raw.Client(server)) as other:
            other.teach(raw.infer("gate", 1, 2), count=5)
            hold.touch()
            leaving = [raw.Client(server) for _ in range(5)]
            for client in leaving:
                client.send(raw.infer("gate", 1, 2))
            wait_until(lambda: server.log.count("gate: 1 requests") > 5)
            for client in leaving:
                client.leave(how)
            wait_until(lambda: server.log.count("gate: cancelled") >= 1)  # some may not even have begun
            hold.unlink()
            for client in leaving if how == "half" else []:
                assert client.read()[0] in (200, 400, 500)
                assert client.stream.read() == b""
                client.close()
            assert raw.values_of(other.ask(raw.infer("gate", 3, 4))[0]) == [3, 4]
        wait_until(lambda: sockets_of(server) <= before)

    def test_connections_leave_nothing(self, start, wait_until, raw):
        """As many as come and go."""
        server = start()
        descriptors = f"/proc/{server.process.pid}/fd"
        with closing(raw.Client(server)) as client:
            client.teach(raw.infer("echo", 1, 2))
            before = len(os.listdir(descriptors))
        for _ in range(20):
            clients = [raw.Client(server) for _ in range(10)]
            for client in clients:
                client.send(raw.infer("echo", 1, 2), raw.infer("echo", 1, 2))
            for client in clients[:5]:
                assert raw.values_of(client.read()) == [1, 2]
            for client in clients:
                client.close()
        wait_until(lambda: len(os.listdir(descriptors)) <= before)

    def test_a_client_that_does_not_read(self, server, client, raw):
        """Responses wait for the client, in order, while other clients are served."""
        values = [7] * 1000
        client.teach(raw.infer("echo", *values))
        count = 2000  # more than sockets hold

        def send():
            client.send(*[raw.infer("echo", number, *values[1:]) for number in range(count)])

        with ThreadPoolExecutor(1) as pool, closing(raw.Client(server)) as other:
            sending = pool.submit(send)
            assert raw.values_of(other.teach(raw.infer("echo", 1, 2))[0]) == [1, 2]
            assert [raw.values_of(client.read())[0] for _ in range(count)] == [*range(count)]
            sending.result()


def test_tritonclient(server):
    """The usual client, which does nothing odd."""
    for number in range(50):
        array = np.array([number, -number], np.int32)
        assert server.infer("echo", {"INPUT0": array}).as_numpy("OUTPUT0").tolist() == [number, -number]

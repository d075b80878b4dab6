# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The commands that are clients, with real servers."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest
import trustme

import pyruntime

SIXTEEN = json.dumps(list(range(16)))
BAD = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("no\\x1b[2J")
"""


@pytest.fixture
def run():
    """`run(server, *words, url="", **environment)`: exit status, output and errors of a command."""

    def run(server, command, *words, url="", **environment):
        arguments = [command, *words]
        if url is not None:
            arguments += ["--url", url or f"http://127.0.0.1:{server.port}"]
        done = subprocess.run(
            [sys.executable, "-m", "pyruntime", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "200", **environment},
        )
        return done.returncode, done.stdout, done.stderr

    return run


class TestServer:
    def test_variable(self, samples, run):
        """PYRUNTIME_URL is the server of all commands that do not name one."""
        status, out, err = run(samples, "models", "--json", url=None, PYRUNTIME_URL=f"127.0.0.1:{samples.port}")
        assert (status, err) == (0, "")
        assert "add_sub" in [row["name"] for row in json.loads(out)]

    def test_completion(self, samples, run):
        """A shell completes the names of models from the server, and nothing if there is no server."""
        words = {"_PYRUNTIME_COMPLETE": "complete_bash", "COMP_WORDS": "pyruntime infer add_s", "COMP_CWORD": "2"}
        for port, expected in ((samples.port, ["add_sub"]), (1, [])):
            _, out, _ = run(samples, "infer", url=None, PYRUNTIME_URL=f"127.0.0.1:{port}", **words)
            assert out.split() == expected

    def test_header(self, serve, run):
        """A header opens a restricted API."""
        server = serve("--http-restricted-api=model-repository:a-key=secret")
        assert run(server, "models", "--json")[0] == 1
        assert run(server, "models", "--json", "--header", "a-key: secret") == (0, "[]\n", "")


class TestInfer:
    def test_a_table(self, samples, run):
        """Outputs in order, with datatypes, shapes and values."""
        status, out, err = run(samples, "infer", "add_sub", "--input", f"INPUT0={SIXTEEN}", "-i", f"INPUT1={SIXTEEN}")
        assert (status, err) == (0, "")
        heading, first, *more = [line.split() for line in out.splitlines()]
        assert heading == ["Output", "Datatype", "Shape", "Value"]
        assert first[:3] == ["OUTPUT0", "FP32", "[16]"]
        assert "30.]" in out
        assert any(line[:1] == ["OUTPUT1"] for line in more)

    def test_json(self, samples, run, tmp_path):
        """Files are inputs too; outputs may be chosen."""
        np.save(tmp_path / "a.npy", np.arange(16.0))
        inputs = ["-i", f"INPUT0=@{tmp_path}/a.npy", "-i", f"INPUT1={SIXTEEN}"]
        status, out, err = run(samples, "infer", "add_sub", *inputs, "--output", "OUTPUT0", "--json")
        assert (status, err) == (0, "")
        sums = [float(2 * each) for each in range(16)]
        assert json.loads(out) == {
            "model_name": "add_sub",
            "model_version": "1",
            "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [16], "data": sums}],
        }

    @pytest.mark.parametrize(
        ("datatype", "value"),
        [
            ("BOOL", [True, False]), ("UINT8", [255]), ("UINT16", [65535]), ("UINT32", [2**32 - 1]),
            ("UINT64", [2**64 - 1]), ("INT8", [-128]), ("INT16", [-1]), ("INT32", [-1, 1]), ("INT64", [-(2**63)]),
            ("FP16", [0.5]), ("BF16", [0.5, -2.0]), ("FP32", [0.25]), ("FP64", [0.1]), ("BYTES", ["a", "ü", ""]),
        ],
    )  # fmt: skip
    def test_datatypes(self, samples, run, datatype, value):
        """All fourteen travel both ways."""
        given = f"INPUT_{datatype}={json.dumps(value)}"
        status, out, err = run(samples, "infer", "identity", "-i", given, "-o", f"OUTPUT_{datatype}", "--json")
        assert (status, err) == (0, "")
        (output,) = json.loads(out)["outputs"]
        assert (output["name"], output["data"]) == (f"OUTPUT_{datatype}", value)

    def test_a_text(self, samples, run):
        """It needs no quotes."""
        status, out, _ = run(samples, "infer", "strings", "-i", "TEXT=hello there")
        assert status == 0
        assert "HELLO THERE" in out

    def test_a_sequence(self, samples, run):
        """Repetitions are the requests of one sequence, which has its own state."""
        words = ["infer", "running_mean", "-i", "VALUE=3", "--sequence", "4711", "--start", "--end", "--repeat", "3"]
        status, out, err = run(samples, *words, "--json")
        assert (status, err) == (0, "")
        answer = json.loads(out)
        assert answer["outputs"][0]["data"] == [[3.0]]
        assert answer["repeated"]["Requests"] == 3
        status, out, err = run(samples, "infer", "running_mean", "-i", "VALUE=3")
        assert status == 1
        assert "must specify a non-zero or non-empty correlation" in err

    def test_repeated_streams(self, samples, run):
        """What can have any number of responses is not repeated, and a sentence says so."""
        status, out, err = run(samples, "infer", "strings", "-i", "TEXT=a", "--stream", "--repeat", "2")
        assert (status, out) == (2, "")
        assert "--repeat is for requests with one response, without --stream" in err

    def test_a_version(self, samples, run):
        """It is the one that answers."""
        words = ["infer", "versions", "-i", "INPUT=1", "-p", "priority=0"]
        for number in ("1", "3"):
            status, out, _ = run(samples, *words, "--model-version", number, "--json")
            assert (status, json.loads(out)["model_version"]) == (0, number)
        assert run(samples, *words, "--model-version", "new")[0] == 2

    def test_a_timeout(self, serve, model, run):
        """A response that takes longer is no longer waited for, and the sentence says how long that was."""
        waits = "class TritonPythonModel:\n    def execute(self, requests):\n        time.sleep(10)\n"
        model("waits", waits)
        status, out, err = run(serve("--exit-timeout-secs=0"), "infer", "waits", "-i", "IN=[1]", "--timeout", "0.5")
        assert (status, out) == (3, "")
        assert err.endswith(" has not answered for 0.5 s\n")

    def test_a_stream(self, samples, run):
        """One line for each response."""
        words = ["infer", "decoupled", "-i", "TEXT=ab", "-i", "REPEAT=2", "--stream"]
        status, out, err = run(samples, *words, "--json", "-o", "INDEX")
        assert (status, err) == (0, "")
        events = [json.loads(line) for line in out.splitlines()]
        assert [event["INDEX"] for event in events] == list(range(len(events)))
        assert len(events) == 2
        assert all("TOKEN" not in event for event in events)
        status, out, err = run(samples, *words)
        assert (status, err) == (0, "")
        assert [line.split("  ")[1] for line in out.splitlines()] == ["INDEX = 0", "INDEX = 1"]

    def test_a_stream_of_a_model_that_is_not_decoupled(self, samples, run):
        """It has one response."""
        status, out, _ = run(samples, "infer", "strings", "-i", "TEXT=a", "--stream", "--json")
        assert status == 0
        assert json.loads(out)["UPPER"] == "A"

    def test_an_error_in_a_stream(self, samples, run):
        """It is one sentence, and the status says so."""
        status, out, err = run(samples, "infer", "decoupled", "-i", "REPEAT=1", "--stream")
        assert (status, out) == (1, "")
        assert err.startswith("Error: ")

    @pytest.mark.parametrize(
        ("words", "status", "said"),
        [
            (["add_sup"], 1, "Request for unknown model: 'add_sup' is not found; did you mean add_sub?"),
            (["add_sub", "-i", "INPUT=1"], 2, "the model has no input 'INPUT'; did you mean INPUT1 or INPUT0?"),
            (["add_sub", "-o", "X"], 2, "the model has no output 'X'; its outputs are OUTPUT0, OUTPUT1"),
            (["add_sub", "-i", "INPUT0=[1]"], 2, "--input INPUT0 does not do: its shape is [1], the model wants [16]"),
            (["decoupled", "-i", "TEXT=a", "-i", "REPEAT=1"], 1, "HTTP end point doesn't support models with "
             "decoupled transaction policy; --stream is for such models"),
        ],
    )  # fmt: skip
    def test_what_is_wrong(self, samples, run, words, status, said):
        """One sentence each; the status tells a wrong command line from a server that refuses."""
        assert run(samples, "infer", *words) == (status, "", f"Error: {said}\n")

    def test_a_missing_input(self, samples, run):
        """The server says so."""
        status, out, err = run(samples, "infer", "add_sub", "-i", f"INPUT0={SIXTEEN}")
        assert (status, out) == (1, "")
        assert "missing required input(s) ['INPUT1']" in err

    def test_what_a_model_says(self, serve, model, run):
        """It can do nothing to the terminal."""
        model("bad", BAD)
        status, out, err = run(serve(), "infer", "bad", "-i", "IN=[1]")
        assert (status, out) == (1, "")
        assert "no\\u001b[2J" in err
        assert "\x1b" not in err

    def test_a_reader_that_leaves(self, samples):
        """A pipe that closes is no failure, and no traceback."""
        command = f"{sys.executable} -m pyruntime models --json --url 127.0.0.1:{samples.port} | true"
        done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


class TestModels:
    def test_a_table(self, samples, run):
        """A row has a model with its inputs and outputs."""
        status, out, err = run(samples, "models")
        assert (status, err) == (0, "")
        (line,) = [line.split() for line in out.splitlines() if line.startswith("strings")]
        assert line == ["strings", "1", "READY", "TEXT", "BYTES[-1]", "UPPER", "BYTES[-1]"]

    def test_json(self, samples, run):
        """It is the repository index."""
        status, out, _ = run(samples, "models", "--json")
        assert status == 0
        assert {"name": "add_sub", "version": "1", "state": "READY"} in json.loads(out)

    def test_not_loaded(self, serve, model, run):
        """A model that is in the repository, and has not been loaded."""
        model("m", "class TritonPythonModel: pass\n")
        status, out, _ = run(serve("--model-control-mode=explicit"), "models")
        assert status == 0
        assert [line.split() for line in out.splitlines()] == [
            ["Model", "Version", "State", "Inputs", "Outputs"],
            ["m", "not", "loaded"],
        ]

    def test_loading(self, serve, model, run, wait_until):
        """A model comes and goes."""
        model("m", "class TritonPythonModel:\n    def execute(self, requests): pass\n")
        server = serve("--model-control-mode=explicit")
        status, out, err = run(server, "load", "m", "--json")
        assert (status, json.loads(out), err) == (0, [{"name": "m", "version": "1", "state": "READY"}], "")
        status, out, _ = run(server, "load", "m")
        assert status == 0
        assert out.splitlines()[1].split() == ["m", "1", "READY", "IN", "INT64[-1]", "OUT", "INT64[-1]"]
        status, out, _ = run(server, "unload", "m", "--json")
        assert status == 0
        assert json.loads(out)[0]["state"] in ("UNLOADING", "UNAVAILABLE")
        wait_until(lambda: "unloaded" in run(server, "models")[1])

    def test_what_cannot_be_loaded(self, serve, model, run):
        """The server's reason, or the name that was meant."""
        model("broken", "raise ValueError('no')\n")
        server = serve("--model-control-mode=explicit")
        status, out, err = run(server, "load", "broken")
        assert (status, out) == (1, "")
        assert "load failed for model 'broken'" in err
        assert "ValueError: no" in err
        expected = "Error: failed to load 'broke', failed to poll from model repository; did you mean broken?\n"
        assert run(server, "load", "broke") == (1, "", expected)
        assert run(server, "unload", "broke") == (1, "", "Error: there is no model 'broke'; did you mean broken?\n")

    def test_another_mode(self, samples, run):
        """Models are then not loaded by hand."""
        for command in ("load", "unload"):
            status, _, err = run(samples, command, "add_sub")
            assert (status, "explicit model load / unload is not allowed" in err) == (1, True)


def heed_ctrl_c():
    """Be interrupted by SIGINT, which a shell has those ignore that it starts in the background, us among them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class TestStats:
    def test_a_table(self, samples, run):
        """One row for each version, or for those of one model."""
        status, out, err = run(samples, "stats")
        assert (status, err) == (0, "")
        assert {"add_sub", "strings"} <= {line.split()[0] for line in out.splitlines()}
        status, out, _ = run(samples, "stats", "add_sub")
        assert status == 0
        assert [line.split()[0] for line in out.splitlines()] == ["Model", "add_sub"]

    def test_json(self, samples, run):
        """The output is the server's statistics."""
        status, out, _ = run(samples, "stats", "add_sub", "--json")
        assert status == 0
        assert [(each["name"], each["version"]) for each in json.loads(out)] == [("add_sub", "1")]

    def test_unknown(self, samples, run):
        """The one that was meant is named."""
        said = "Error: requested model 'add_sup' is not available; did you mean add_sub?\n"
        assert run(samples, "stats", "add_sup") == (1, "", said)

    def test_watching(self, samples):
        """A line each second for machines; Ctrl-C ends it well."""
        url = f"http://127.0.0.1:{samples.port}"
        words = [sys.executable, "-m", "pyruntime", "stats", "add_sub", "--watch", "--json", "--url", url]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(words, **pipes, text=True, preexec_fn=heed_ctrl_c) as process:
            for _ in range(2):
                (found,) = json.loads(process.stdout.readline())
                assert found["name"] == "add_sub"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate()
        assert (process.returncode, err) == (0, "")

    def test_watching_a_table(self, samples, wait_until, tmp_path):
        """It is written anew, with a rate."""
        words = [sys.executable, "-m", "pyruntime", "stats", "--watch", "--url", f"127.0.0.1:{samples.port}"]
        path = tmp_path / "out"
        environment = {**os.environ, "TTY_COMPATIBLE": "1", "FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"}
        with (
            path.open("wb") as out,
            subprocess.Popen(words, stdout=out, env=environment, preexec_fn=heed_ctrl_c) as process,
        ):
            try:
                wait_until(lambda: "Per second" in path.read_text())
            finally:
                process.send_signal(signal.SIGINT)
        assert process.returncode == 0


LEVELS = "max_batch_size: 1 dynamic_batching { priority_levels: 3 default_priority_level: 2 }"
# Waits for a file beside it.
GATED = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        with open(self.folder + "/begun", "w"):
            pass
        while not os.path.exists(self.folder + "/gate"):
            time.sleep(0.001)
        given = [pb_utils.get_input_tensor_by_name(request, "IN") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.as_numpy())]) for each in given]
"""


@contextmanager
def top(url, path, *words, terminal=False):
    """A `pyruntime top` that writes to a file, until the end of the block: Ctrl-C ends it well."""
    arguments = [sys.executable, "-m", "pyruntime", "top", "--interval", "0.1", "--url", url, *words]
    environment = {**os.environ, "COLUMNS": "80"}
    if terminal:
        environment |= {"TTY_COMPATIBLE": "1", "FORCE_COLOR": "1", "TERM": "xterm"}
    with (
        path.open("wb") as out,
        subprocess.Popen(arguments, stdout=out, stderr=out, env=environment, preexec_fn=heed_ctrl_c) as process,
    ):
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 0


class TestTop:
    def test_once(self, samples, run):
        """A table that fits into 80 columns, with rates of the interval."""
        status, out, err = run(samples, "top", "--once", "--interval", "0.1", COLUMNS="80")
        assert (status, err) == (0, "")
        first, *lines = [line for line in out.splitlines() if line.strip()]
        assert first.startswith(f"pyruntime {pyruntime.__version__}, http://127.0.0.1:{samples.port}, ready, up ")
        headings = ["Model", "Ver", "State", "Inst", "Queue", "Req/s", "Fail/s", "Mean", "Memory", "Restarts"]
        (at,) = [number for number, line in enumerate(lines) if line.split() == headings]
        (cells,) = [line.split() for line in lines[at:] if line.startswith("add_sub ")]
        assert cells[:5] == ["add_sub", "1", "ready", "1/1", "0"]
        assert max(map(len, out.splitlines())) <= 80

    def test_levels_and_quantiles(self, model, serve, run, wait_until):
        """What waits in each priority level, and latencies if the server makes summaries."""
        folder = model("gated", GATED, more=LEVELS)
        server = serve("--metrics-config=summary_latencies=true")
        inputs = [{"name": "IN", "datatype": "INT64", "shape": [1, 1], "data": [1]}]

        def ask(priority):
            document = {"inputs": inputs, "parameters": {"priority": priority}}
            return server.request("POST", "/v2/models/gated/infer", json.dumps(document)).status

        def row():
            (found,) = json.loads(run(server, "top", "--once", "--json", "--interval", "0.1")[1])["rows"]
            return found

        with ThreadPoolExecutor(5) as clients:
            answers = [clients.submit(ask, 1)]
            wait_until((folder / "begun").exists)
            answers += [clients.submit(ask, priority) for priority in (1, 3, 3, 0)]
            wait_until(lambda: row()["queued"] == 4)
            assert row()["levels"] == {"1": 1, "2": 1, "3": 2}
            assert "4 (1:1 2:1 3:2)" in run(server, "top", "--once", "--interval", "0.1", COLUMNS="80")[1]
            (folder / "gate").touch()
            assert {each.result() for each in answers} == {200}
        found = wait_until(lambda: (now := row())["p50_ms"] is not None and now)
        assert found["p99_ms"] >= found["p50_ms"] > 0
        assert (found["queued"], found["levels"]) == (0, {})

    def test_order(self, samples, run):
        """The model with the most of something comes first; other orders are refused."""
        samples.infer("add_sub", {"INPUT0": np.ones(16, np.float32), "INPUT1": np.ones(16, np.float32)})
        status, out, _ = run(samples, "top", "--once", "--json", "--sort", "memory", "--interval", "0.1")
        sizes = [row["memory"] for row in json.loads(out)["rows"]]
        assert (status, sizes) == (0, sorted(sizes, reverse=True))
        assert run(samples, "top", "--sort", "colour")[0] == 2

    @pytest.mark.parametrize("terminal", [True, False])
    def test_a_server_that_goes_and_comes_back(self, model, serving, reserve_ports, tmp_path, wait_until, terminal):
        """It says so meanwhile, and goes on."""
        model("m", BAD)
        path = tmp_path / ".out"
        with reserve_ports(1) as (port,):
            with ExitStack() as first:
                first.enter_context(serving(tmp_path, port=port))
                watching = first.enter_context(ExitStack())
                watching.enter_context(top(f"127.0.0.1:{port}", path, terminal=terminal))
                wait_until(lambda: "ready, up" in path.read_text())
                following = watching.pop_all()
            with following:
                wait_until(lambda: "trying again" in path.read_text())
                size = path.stat().st_size
                with serving(tmp_path, port=port):
                    wait_until(lambda: "ready, up" in path.read_text()[size:])

    def test_another_server(self, run, httpserver_of_others):
        """A server without the page, as Triton is, gets another command proposed."""
        status, out, err = run(None, "top", "--once", url=httpserver_of_others)
        assert (status, out) == (1, "")
        hint = "top is for pyruntime, and stats --watch for any server"
        assert err == f"Error: {httpserver_of_others} has no /page/watch: {hint}\n"

    def test_restricted(self, serve, model, run):
        """What is restricted is named, and its header opens it."""
        model("m", BAD)
        server = serve("--http-restricted-api=statistics:a-key=secret")
        words = "top", "--once", "--interval", "0.1"
        status, out, _ = run(server, *words)
        assert status == 0
        assert "The API 'statistics' needs the header 'a-key'" in out
        status, out, _ = run(server, *words, "--header", "a-key: secret")
        assert (status, "needs the header" in out) == (0, False)


@pytest.fixture
def httpserver_of_others():
    """The URL of a server that knows no path."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("command", [["models"], ["infer", "m"], ["load", "m"], ["unload", "m"], ["stats"], ["top"]])
def test_no_server(run, command):
    """One sentence, and a status of its own."""
    expected = "Error: no server answers at http://127.0.0.1:1: Connection refused\n"
    assert run(None, *command, url="http://127.0.0.1:1") == (3, "", expected)


def test_tls(serve, model, run, wait_until, tmp_path):
    """A server over TLS is spoken to if its certificate is trusted, which the environment says."""
    model("m", BAD)
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    names = [str(tmp_path / f".{name}.pem") for name in ("root", "cert", "key")]
    for name, pem in zip(names, (authority.cert_pem, own.cert_chain_pems[0], own.private_key_pem), strict=True):
        pem.write_to_path(name)
    root, cert, key = names
    server = serve("--http-use-ssl=true", f"--http-server-cert={cert}", f"--http-server-key={key}", ready=False)
    url = f"https://127.0.0.1:{server.port}"

    def found():
        status, out, _ = run(server, "models", "--json", url=url, SSL_CERT_FILE=root)
        return status == 0 and "READY" in out

    wait_until(found)
    status, out, err = run(server, "models", url=url)
    assert (status, out) == (3, "")
    assert err.startswith(f"Error: {url} shows a certificate that is not trusted: ")


def test_tritonserver():
    """A server that is started by Triton's name."""
    done = subprocess.run(
        [sys.executable, "-m", "pyruntime", "tritonserver", "--http-prot=1"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == "Error: unknown option '--http-prot'; did you mean --http-port?\n"


def test_completion():
    """The commands can be completed by a shell."""
    environment = {
        **os.environ,
        "_PYRUNTIME_COMPLETE": "complete_bash",
        "COMP_WORDS": "pyruntime mo",
        "COMP_CWORD": "1",
    }
    words = [sys.executable, "-c", "import sys; from pyruntime.runtime.cli import main; sys.exit(main([]))"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["models"]

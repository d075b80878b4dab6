# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The log of a server, with the settings at the start and those that clients change."""

import json
import os
import re

import numpy as np
import pytest

PRINTS = r"""
class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_warn("a\x1b[2J\x9b\n\u202e")
        print("b\x1b[2J")
        raise ValueError("c\x1b[2J")
"""
DEFAULTS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
# Both formats, of a line whose message is quoted.
DEFAULT_LINE = re.compile(r'[EWIV]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ [\w.]+:\d+\] (".*")?')
ISO8601_LINE = re.compile(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ [EWIV] \d+ [\w.]+:\d+\] (".*")?')
TABLE_LINE = re.compile(r"[+|].*")


def change(server, values):
    answer = server.request("POST", "/v2/logging", json.dumps(values).encode())
    return answer.status, json.loads(answer.body)


@pytest.fixture
def quoting(serve, monkeypatch):
    """A server as users have it, with quotes and escapes in its log, is started by what is returned."""
    # The fixture sets this variable to 0 for every server that it starts.
    wrapper = ("env", "-u", "TRITON_SERVER_ESCAPE_LOG_MESSAGES")
    return lambda *options: serve(*options, wrapper=wrapper)


class TestEndpoint:
    @pytest.fixture
    def server(self, serve, model):
        model("m", PRINTS)
        return serve()

    def test_defaults(self, server):
        """As the command line had it."""
        assert json.loads(server.request("GET", "/v2/logging").body) == DEFAULTS

    def test_changes(self, server, wait_until):
        """They hold at once, and null changes nothing."""
        changed = {"log_verbose_level": 1, "log_format": "ISO8601", "log_info": None, "log_file": None}
        expected = {**DEFAULTS, "log_verbose_level": 1, "log_format": "ISO8601"}
        assert change(server, changed) == (200, expected)
        assert json.loads(server.request("GET", "/v2/logging").body) == expected
        line = r"Z V \d+ request_log.py:\d+\] HTTP request: GET /v2/logging -> 200 after [0-9.]+ ms\n"
        wait_until(lambda: re.search(line, server.log))
        assert change(server, {"log_verbose_level": 0})[0] == 200
        length = len(server.log)
        server.request("GET", "/v2/logging")
        assert server.log[length:] == ""

    @pytest.mark.parametrize(
        ("values", "status", "message"),
        [
            ({"log_info": 1}, 400, "expect boolean for 'log_info'"),
            ({"log_verbose_level": -1}, 400, "expect int32 for 'log_verbose_level'"),
            ({"log_format": "x"}, 400, "invalid argument for log_format, got: x"),
            ({"log_file": "x"}, 501, "log file location can not be updated through network protocol"),
        ],
    )
    def test_what_is_refused(self, server, values, status, message):
        """A refused change changes no setting."""
        assert change(server, {"log_info": False, **values}) == (status, {"error": message})
        assert json.loads(server.request("GET", "/v2/logging").body) == DEFAULTS


class TestLines:
    @pytest.mark.parametrize(("log_format", "pattern"), [("default", DEFAULT_LINE), ("ISO8601", ISO8601_LINE)])
    def test_all_lines(self, quoting, model, log_format, pattern):
        """From the first to the last, every line has the format, or is one of a table."""
        model("m", PRINTS)
        server = quoting(f"--log-format={log_format}", "--log-verbose=1")
        server.request("POST", "/v2/models/m/infer", b"{}")
        server.stop()
        lines = server.log.splitlines()
        assert len(lines) > 20
        assert [line for line in lines if not pattern.fullmatch(line) and not TABLE_LINE.fullmatch(line)] == []

    def test_nothing_raw(self, quoting, model, wait_until):
        """Control characters of clients and models reach the log only escaped."""
        model("m", PRINTS)
        server = quoting("--log-verbose=1")
        body = json.dumps(
            {"inputs": [{"name": "IN", "shape": [1], "datatype": "INT64", "data": [1]}], "id": "i\x1b[2J"}
        )
        assert server.request("POST", "/v2/models/m/infer", body).status == 500
        for path in ("/v2/models/%1b%5b2J", "/v2/repository/models/%1b%0a/load", "/v2/models/m?%1b"):
            server.request("POST", path, b"{}")
        server.say(b"GET /v2/\x1b[2J\x9b HTTP/1.1\r\n\r\n")
        server.say(b"\x1b[2J\r\n\r\n")
        wait_until(lambda: all(f"{each}\\u001b[2J" in server.log for each in "ab"))
        server.stop()
        raw = server.log_path.read_bytes()
        assert raw.decode().replace("\n", "").isprintable()
        assert b"2J" in raw

    def test_files(self, quoting, model, tmp_path):
        """A log file has all lines but none of standard error's, and is added to."""
        path = tmp_path / ".server.log"
        path.write_text("before\n")
        server = quoting(f"--log-file={path}")
        assert json.loads(server.request("GET", "/v2/logging").body)["log_file"] == str(path)
        server.stop()
        first, *lines = path.read_text().splitlines()
        assert first == "before"
        assert any("Started HTTPService at" in line for line in lines)
        assert server.log == ""


def test_json(quoting, model):
    """With --log-format=json each line that the server writes is an object."""
    model("m", PRINTS)
    server = quoting("--log-format=json", "--log-verbose=1")
    server.stop()
    lines = [json.loads(line) for line in server.log.splitlines()]
    (models,) = [line for line in lines if line["message"] == "Models"]
    assert "| m     | 1       | READY  |" in models["table"]
    assert lines[-1]["message"] == "All models are stopped, unloaded."


def test_requests(serve, model, wait_until):
    """With verbose lines each request has one, of either protocol."""
    model("m", PRINTS)
    server = serve("--log-verbose=1")
    server.request("GET", "/v2/models/none/config?token=secret")
    with server.grpc() as client:
        assert client.is_server_live()
    wait_until(lambda: "gRPC call: /inference.GRPCInferenceService/ServerLive ended after" in server.log)
    assert re.search(r"HTTP request: GET /v2/models/none/config -> 404 after [0-9.]+ ms\n", server.log)
    assert "secret" not in server.log


def test_environment():
    """The tests above mean what they say only if the environment does not."""
    assert "TRITON_SERVER_ESCAPE_LOG_MESSAGES" not in os.environ


@pytest.mark.parametrize("how", ["os.write(1, b'x' * 1023 + b'\\n')", "pb_utils.Logger.log_info('x' * 1023)"])
def test_flood(model, serve, wait_until, how):
    """A model that logs without end is answered like any other; its output is dropped, and the log says how much."""
    code = f"""
    class TritonPythonModel:
        def execute(self, requests):
            for _ in range(32 * 1024):
                {how}
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1]))]) for _ in requests]
    """
    model("floods", code)
    server = serve()
    assert server.infer("floods", {"IN": np.array([1])}).as_numpy("OUT").tolist() == [1]
    report = re.compile(r"floods_0: (\d+) bytes of output were dropped: ")
    wait_until(lambda: sum(map(int, report.findall(server.log))) + server.log_path.stat().st_size > 32 << 20)
    assert server.log_path.stat().st_size < 16 << 20


def test_what_a_model_configures_for_its_records_happens(serve, model, python, wait_until):
    """In each kind of stub. Where it configures nothing its records are in the log, once, with their levels."""
    code = """
    class TritonPythonModel:
        def initialize(self, args):
            logging.info("before")
            own = logging.getLogger("own")
            own.addHandler(logging.StreamHandler())
            own.warning("printed by its own handler")
            logging.basicConfig(filename=args["model_repository"] + "/mine", level="DEBUG", format="mine %(message)s")
            logging.debug("after")
            print("configured")

        def execute(self, requests):
            pass
    """
    folder = model("m", code, more=python)
    server = serve()
    wait_until(lambda: "m_0: configured" in server.log)
    assert re.search(r"^I\d+ .*model.py:\d+\] m_0: before$", server.log, re.MULTILINE)
    assert server.log.count("printed by its own handler") == 1
    assert (folder / "mine").read_text() == "mine after\n"
    assert "after" not in server.log


class TestAtTerminal:
    """A server as users start it by hand."""

    @pytest.fixture
    def by_hand(self, terminal, serve):
        """`by_hand(*options)`: a server at the terminal, with the lines that people get. It ends before that."""
        wrapper = ("env", "-u", "TRITON_SERVER_ESCAPE_LOG_MESSAGES", *terminal.wrapper)
        return lambda *options, **how: serve(*options, wrapper=wrapper, **how)

    def test_one_report_for_each_error(self, model, by_hand, terminal):
        """Lines are short, a traceback stands below one of them, and a failed load is told once."""
        model("broken", "import no_such_module\n")
        model("fails", "class TritonPythonModel:\n    def execute(self, requests):\n        raise ValueError('why')\n")
        server = by_hand("--exit-on-error=false", "--strict-readiness=false")
        assert server.refusal("fails", {"IN": np.array([1])})[0] == 500
        seen = terminal.seen()
        assert re.search(r"^\d\d:\d\d:\d\d I Started HTTPService at .*\n(.*\n)*\d\d:\d\d:\d\d I loading: ", seen)
        assert seen.count("no_such_module'") == 1
        expected = r"""\d\d:\d\d:\d\d E fails_0: execute failed
  Traceback \(most recent call last\):
    File ".*/fails/1/model.py", line \d+, in execute
      raise ValueError\('why'\)
  ValueError: why
"""
        assert re.search(f"^{expected}", seen, re.M)
        assert re.search(r"^\| broken +\| 1 +\| UNAVAILABLE +\|$", seen, re.M)

    def test_place_in_a_configuration(self, model, by_hand, terminal):
        """A mistake in config.pbtxt is shown in its line."""
        model("m", "", config='name: "m"\nbakend: "python"\n')
        by_hand("--exit-on-error=false", "--strict-readiness=false")
        assert 'has no field named "bakend". Did you mean backend?\n    bakend: "python"\n    ^\n' in terminal.seen()

    def test_crash(self, model, by_hand, terminal, wait_until):
        """A crash report has the frames of the model, and none of pyruntime. From 3.14 on it has those in C, too."""
        dies = "class TritonPythonModel:\n    def execute(self, requests):\n        os.abort()\n"
        model("dies", dies)
        server = by_hand()
        server.refusal("dies", {"IN": np.array([1])})
        wait_until(lambda: "restarts in" in terminal.seen())
        assert re.search(
            r"E dies_0: Fatal Python error: Aborted\n  Current thread .*\n"
            r'    File ".*/model.py", line \d+ in execute\n'
            r"(  Current thread's C stack trace .*\n(    .*\n)+)?"
            r"\d\d:\d\d:\d\d E dies_0: stub killed by SIGABRT",
            terminal.seen(),
        )


def test_path_of_a_single_file(serving, tmp_path, wait_until):
    """A traceback of `serve model.py` names the file that the user wrote."""
    file = tmp_path / "hello.py"
    code = "import helper\nclass TritonPythonModel:\n    def execute(self, requests):\n        helper.fail()\n"
    file.write_text(code)
    (tmp_path / "helper.py").write_text("def fail():\n    raise ValueError('why')\n")
    (tmp_path / "empty").mkdir()
    with serving(tmp_path / "empty", f"--model-repository={file}") as server:
        assert server.request("POST", "/v2/models/hello/infer", '{"inputs": []}').status == 500
        wait_until(lambda: "ValueError: why" in server.log)
        for name in ("hello", "helper"):
            assert f'File "{tmp_path.resolve()}/{name}.py", line ' in server.log
        assert "pyruntime-" not in server.log


def test_path_of_the_configuration_of_a_single_file(serving, tmp_path):
    """An error in the config.pbtxt beside `serve hello.py` names the file that the user wrote."""
    (tmp_path / "hello.py").write_text("class TritonPythonModel:\n    def execute(self, requests):\n        pass\n")
    (tmp_path / "config.pbtxt").write_text('backend: "python"\nnonsense: 1\n')
    (tmp_path / "empty").mkdir()
    options = f"--model-repository={tmp_path / 'hello.py'}", "--model-control-mode=explicit"
    with serving(tmp_path / "empty", *options) as server:
        answer = server.request("POST", "/v2/repository/models/hello/load", "{}")
        assert f"{tmp_path.resolve()}/config.pbtxt:2:1: " in json.loads(answer.body)["error"]
        assert "pyruntime-" not in server.log

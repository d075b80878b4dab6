# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import logging
import os
import pty
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.observe.log_text import LINE_CHARS_MAX, quote
from pyruntime.runtime.observe.logging import (
    ESCAPE_VARIABLE,
    LOGGER_NAMES,
    TritonFormatter,
    set_up_logging,
)
from pyruntime.runtime.settings import ServerSettings, SettingsError

# 2026-08-19 12:34:56.123456 UTC
MOMENT = 1787142896.123456


def record(message="loaded", *args, level=logging.INFO, **extra):
    made = logging.LogRecord("pyruntime.x", level, "/a/server.py", 123, message, args, None)
    made.created, made.process = MOMENT, 42
    made.__dict__.update(extra)
    return made


@pytest.fixture
def logger(monkeypatch):
    """The logger of the whole project, as it was before when the test is over."""
    monkeypatch.delenv(ESCAPE_VARIABLE, raising=False)
    yield logging.getLogger("pyruntime")
    for name in LOGGER_NAMES:
        one = logging.getLogger(name)
        for handler in one.handlers[:]:
            one.removeHandler(handler)
            handler.close()
        one.setLevel(logging.NOTSET)
        one.propagate = True


class Dated(logging.LogRecord):
    """A record of MOMENT."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.created = MOMENT


def settings(**fields):
    return ServerSettings(("models",), **fields)


@pytest.mark.parametrize(
    ("level", "letter"),
    [
        (logging.DEBUG, "V"),
        (logging.INFO, "I"),
        (logging.WARNING, "W"),
        (logging.ERROR, "E"),
        (logging.CRITICAL, "E"),
    ],
)
def test_default_format(level, letter):
    """Letter, month and day, time in microseconds, process, file and line, then the message as a JSON string."""
    line = TritonFormatter().format(record("model %r", "a", level=level))
    assert line == letter + "0819 12:34:56.123456 42 server.py:123] \"model 'a'\""


def test_iso8601_format():
    """The date comes first, then the letter."""
    line = TritonFormatter("ISO8601").format(record())
    assert line == '2026-08-19T12:34:56Z I 42 server.py:123] "loaded"'


def test_json_format():
    """A line is an object, with the place in the model and with a table where there is one."""
    formatter = TritonFormatter("json")
    assert json.loads(formatter.format(record("a\n%s", "\x1b"))) == {
        "time": "2026-08-19T12:34:56.123456Z", "level": "info", "process": 42, "file": "server.py", "line": 123,
        "message": "a\n\x1b",
    }  # fmt: skip
    line = formatter.format(record(stub_file="m\n.py", stub_line=7, table="+\n+", level=logging.ERROR))
    assert line.isascii()
    assert line.isprintable()
    found = json.loads(line)
    assert (found["level"], found["file"], found["line"], found["table"]) == ("error", "m\n.py", 7, "+\n+")


@pytest.mark.parametrize(("variable", "expected"), [("", True), ("1", False)])
def test_terminal(logger, monkeypatch, variable, expected):
    """Lines have colours at a terminal, unless the user wants none."""
    monkeypatch.setenv("NO_COLOR", variable)
    reader, writer = pty.openpty()
    with open(reader, "rb", 0) as screen, open(writer, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        set_up_logging(settings())
        logging.getLogger("pyruntime.test").error("a")
        assert (b"\x1b[31m" in screen.read(1000)) is expected


@pytest.mark.parametrize(
    ("fields", "variable", "pattern"),
    [
        ({}, "1", rb"\d\d:34:56 I a\r\n$"),
        ({"log_verbose": 1}, "1", rb"\d\d:34:56 I test_logging.py:\d+ a\r\n$"),
        ({"log_format": "default"}, "1", rb'I0819 12:34:56.123456 \d+ test_logging.py:\d+\] "a"\r\n$'),
        ({"log_format": "ISO8601"}, "1", rb'2026-08-19T12:34:56Z I \d+ test_logging.py:\d+\] "a"\r\n$'),
        ({}, "0", rb"I0819 12:34:56.123456 \d+ test_logging.py:\d+\] a\r\n$"),
    ],
)
def test_format_at_a_terminal(logger, monkeypatch, fields, variable, pattern):
    """At a terminal lines are for people, unless somebody asks for a format of Triton's; nothing else has colours."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv(ESCAPE_VARIABLE, variable)
    monkeypatch.setattr(logging, "_logRecordFactory", Dated)  # that of getLogRecordFactory, which is restored
    reader, writer = pty.openpty()
    with open(reader, "rb", 0) as screen, open(writer, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        set_up_logging(settings(**fields))
        logger.info("a")
        assert re.match(pattern, screen.read(1000))


def test_what_is_hidden_at_a_terminal(logger, monkeypatch):
    """What another line says, and frames of pyruntime, are shown at a terminal only by verbose lines."""
    reader, writer = pty.openpty()
    with open(reader, "rb", 0) as screen, open(writer, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        for log_verbose, shown in ((0, 1), (1, 2)):
            set_up_logging(settings(log_verbose=log_verbose))
            logger.error("a hidden line", extra={"only_verbose": True})
            logger.error("the last line")
            text = b""
            while b"the last" not in text:
                text += screen.read(1000)
            assert text.count(b"line\r\n") == shown


def test_line_of_a_model_has_the_models_file():
    """A record that a model made says where in the model."""
    line = TritonFormatter().format(record(stub_file="model.py", stub_line=7))
    assert line == 'I0819 12:34:56.123456 42 model.py:7] "loaded"'


def test_message_is_escaped():
    """One record is one line: what does not print is escaped, what prints stays readable."""
    line = TritonFormatter().format(record('a\n"b"\x1b[2J\x7f\x9b\u202e\ud800 ünïcode'))
    assert line.endswith(r'] "a\n\"b\"\u001b[2J\u007f\u009b\u202e\ud800 ünïcode"')


def test_traceback_of_a_model():
    """A line of a traceback has no quotes; what does not print is escaped all the same."""
    line = TritonFormatter().format(record('m_0:   File "/m/1/model.py"\n\x1b', in_traceback=True))
    assert line.endswith('] m_0:   File "/m/1/model.py"\\n\\u001b')


def test_file_of_a_model_is_escaped():
    """A model cannot drive a terminal by the name of its file."""
    assert " a\\u001b.py:7] " in TritonFormatter().format(record(stub_file="a\x1b.py", stub_line=7))


def test_message_as_it_is():
    """Without escaping there are no quotes either."""
    assert TritonFormatter(escape=False).format(record('a\n"b"')).endswith('123] a\n"b"')


def test_traceback_is_part_of_the_message():
    """A failure is one line too, with its traceback."""
    try:
        raise ValueError("broken")
    except ValueError:
        line = TritonFormatter().format(record(exc_info=sys.exc_info()))
    message = json.loads(line.split("] ", 1)[1])
    assert message.startswith("loaded\nTraceback (most recent call last):\n")
    assert message.endswith("ValueError: broken")


def test_long_message_is_cut():
    """A message of any length is a line of bounded length, which says so."""
    line = TritonFormatter().format(record("x" * (LINE_CHARS_MAX + 1)))
    assert line.endswith(f'x ... (cut: {LINE_CHARS_MAX + 1} characters)"')
    assert len(line) < LINE_CHARS_MAX + 100
    assert TritonFormatter().format(record("x" * LINE_CHARS_MAX)).endswith('x"')


def test_table_stands_below_its_line():
    """A table is written as it is, from the next line on."""
    assert TritonFormatter().format(record("models:", table="+--+\n|a |")).endswith('] "models:"\n+--+\n|a |')
    assert TritonFormatter().format(record("", table="+--+")).endswith("server.py:123] \n+--+")
    assert TritonFormatter().format(record("")).endswith('server.py:123] ""')


@given(st.text(alphabet=st.characters()))
def test_quoted_text_is_json_that_prints(text):
    """The quoted form of any message is printable, and a JSON parser reads it back."""
    quoted = quote(text)
    assert quoted.isprintable()
    # JSON joins a pair of lone surrogates to the one character that they stand for.
    assert json.loads(quoted) == text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def test_lines_go_to_standard_error(logger, capsys):
    """Without a file the lines are standard error's, in the format asked for."""
    set_up_logging(settings(log_format="ISO8601"))
    logging.getLogger("pyruntime.runtime.app.server").info("ready")
    line = capsys.readouterr().err
    pattern = rf'\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ I {os.getpid()} test_logging\.py:\d+\] "ready"\n'
    assert re.fullmatch(pattern, line)


def test_lines_are_added_to_the_file(logger, tmp_path, capsys):
    """A log file grows; standard error stays silent; text that is no UTF-8 does no harm."""
    path = tmp_path / "server.log"
    path.write_text("before\n")
    set_up_logging(settings(log_file=str(path)))
    logger.error("after \ud800")
    assert path.read_text().startswith("before\nE")
    assert path.read_text().endswith('"after \\ud800"\n')
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "IWE"),
        ({"log_verbose": 1}, "VIWE"),
        ({"log_info": False}, "WE"),
        ({"log_warning": False}, "IE"),
        ({"log_info": False, "log_verbose": 2}, "VWE"),
        ({"log_info": False, "log_warning": False, "log_error": False}, ""),
    ],
)
def test_kinds_of_lines_are_switched_one_by_one(logger, capsys, fields, expected):
    """Each kind of line has a switch of its own, as in Triton."""
    set_up_logging(settings(**fields))
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        logger.log(level, "x")
    assert "".join(line[0] for line in capsys.readouterr().err.splitlines()) == expected


def test_records_that_would_not_pass_are_not_made(logger):
    """A debug line costs nothing while verbose lines are off."""
    set_up_logging(settings())
    assert not logger.isEnabledFor(logging.DEBUG)
    assert logger.isEnabledFor(logging.INFO)


def test_a_second_set_up_replaces_the_first(logger, capsys):
    """No line is written twice."""
    set_up_logging(settings())
    set_up_logging(settings())
    logger.info("x")
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(("value", "ending"), [("0", "] a\nb\n"), ("1", '] "a\\nb"\n')])
def test_environment_switches_escaping_off(logger, capsys, monkeypatch, value, ending):
    """TRITON_SERVER_ESCAPE_LOG_MESSAGES=0 writes messages as they are."""
    monkeypatch.setenv(ESCAPE_VARIABLE, value)
    set_up_logging(settings())
    logger.info("a\nb")
    assert capsys.readouterr().err.endswith(ending)


def test_event_loops_complaints_are_lines_too(logger, capsys):
    """Reports of asyncio about a task have the same format."""
    set_up_logging(settings())
    logging.getLogger("asyncio").error("Task exception was never retrieved")
    assert capsys.readouterr().err.startswith("E")


def test_file_that_cannot_be_opened(logger, tmp_path):
    """The error names the file and the reason, and nothing was changed."""
    before = list(logger.handlers)
    with pytest.raises(SettingsError, match=r"--log-file '.*none/x' cannot be opened: No such file or directory"):
        set_up_logging(settings(log_file=str(tmp_path / "none" / "x")))
    assert logger.handlers == before

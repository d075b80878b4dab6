# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of the log for people: short headings, and texts that stand below each other."""

import logging
from datetime import datetime

import pytest

from pyruntime.runtime.observe.console import ConsoleFormatter, is_for_people

NOON = datetime(2026, 8, 19, 12, 0, 7)


def record(message="loaded", *args, level=logging.INFO, **extra):
    made = logging.LogRecord("pyruntime.x", level, "/a/server.py", 123, message, args, None)
    made.created = NOON.timestamp()
    made.__dict__.update(extra)
    return made


def shown(*args, **extra):
    return ConsoleFormatter().format(record(*args, **extra))


def test_heading():
    """The time of day and a letter precede a message; verbose lines say where it comes from, too."""
    assert shown("model %r", "a") == "12:00:07 I model 'a'"
    assert ConsoleFormatter(is_verbose=True).format(record()) == "12:00:07 I server.py:123 loaded"
    of_a_model = record(stub_file="/m/1/model\n.py", stub_line=7)
    assert ConsoleFormatter(is_verbose=True).format(of_a_model) == "12:00:07 I /m/1/model\\n.py:7 loaded"


@pytest.mark.parametrize(
    ("level", "letter"),
    [
        (logging.DEBUG, "V"),
        (logging.INFO, "I"),
        (logging.WARNING, "\x1b[33mW\x1b[0m"),
        (logging.ERROR, "\x1b[31mE\x1b[0m"),
    ],
)
def test_colors(level, letter):
    """The letters of errors and warnings are coloured, and the time is faint."""
    line = ConsoleFormatter(colored=True).format(record(level=level))
    assert line == f"\x1b[2m12:00:07\x1b[0m {letter} loaded"


def test_text_of_several_lines():
    """People read messages as they are: lines below each other, quotes as quotes, and nothing drives the terminal."""
    line = shown("failed: no such file: '/\"a\"'\n\nAt:\n  1/model.py(7): f\x1b[2J\n")
    assert line == "12:00:07 I failed: no such file: '/\"a\"'\n  \n  At:\n    1/model.py(7): f\\u001b[2J"
    forged = shown("a\n12:00:07 I forged")
    assert [text.startswith("12:00") for text in forged.split("\n")] == [True, False]


def test_record_that_continues():
    """What continues a record stands below it, without the name of the model."""
    assert shown("m_0:   File 1", people="  File 1", continues=True) == "    File 1"
    assert shown("m_0: ", people="", continues=True) == "  "


def test_table():
    """A table for people takes the place of the whole one, unless lines are verbose."""
    assert shown("Models", table="+--+\n|ab|") == "12:00:07 I Models\n+--+\n|ab|"
    short = {"table": "whole", "people_table": "short"}
    assert shown("Models", **short) == "12:00:07 I Models\nshort"
    assert ConsoleFormatter(is_verbose=True).format(record(**short)).endswith("\nwhole")


def test_what_people_see():
    """All but what only verbose lines show."""
    assert is_for_people(record())
    assert is_for_people(record(only_verbose=False))
    assert not is_for_people(record(only_verbose=True))


def test_exception_of_the_server():
    """A failure of the server itself stands below its message."""
    made = record("broken", level=logging.ERROR)
    try:
        raise ValueError("why")
    except ValueError as exc:
        made.exc_info = (ValueError, exc, exc.__traceback__)
    lines = ConsoleFormatter().format(made).split("\n")
    assert (lines[0], lines[1], lines[-1]) == (
        "12:00:07 E broken",
        "  Traceback (most recent call last):",
        "  ValueError: why",
    )

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The log settings that clients may change."""

import logging

import pytest

from pyruntime.runtime.observe.log_settings import LogSettings
from pyruntime.runtime.observe.logging import LOGGER_NAMES, adjust_logging, set_up_logging
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import Code, InferenceError

DEFAULTS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


@pytest.fixture
def applied():
    """The settings that were applied, one after the other."""
    return []


@pytest.fixture
def log_settings(applied):
    return LogSettings(ServerSettings(("models",)), applied.append)


@pytest.fixture
def logger():
    """The logger of the whole project, as it was before when the test is over."""
    yield logging.getLogger("pyruntime")
    for name in LOGGER_NAMES:
        one = logging.getLogger(name)
        for handler in one.handlers[:]:
            one.removeHandler(handler)
            handler.close()
        one.setLevel(logging.NOTSET)
        one.propagate = True


def test_what_the_operator_set():
    """All six settings, by the names that clients know them by."""
    settings = ServerSettings(("models",), log_file="a.log", log_info=False, log_verbose=2, log_format="ISO8601")
    assert LogSettings(settings, print).current() == {
        **DEFAULTS, "log_file": "a.log", "log_info": False, "log_verbose_level": 2, "log_format": "ISO8601"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log_info", False),
        ("log_warning", False),
        ("log_error", False),
        ("log_verbose_level", 3),
        ("log_format", "ISO8601"),
    ],
)
def test_one_setting_is_changed(log_settings, applied, name, value):
    """The other settings stay, and the change is applied at once."""
    log_settings.update({name: value})
    assert log_settings.current() == {**DEFAULTS, name: value}
    assert len(applied) == 1


def test_verbose_is_known_at_a_glance(log_settings):
    """`verbose` says whether verbose lines are logged, so that they are not formatted in vain."""
    assert not log_settings.verbose
    log_settings.update({"log_verbose_level": 1})
    assert log_settings.verbose
    log_settings.update({"log_verbose_level": 0})
    assert not log_settings.verbose


@pytest.mark.parametrize("values", [{}, {"log_info": True}, {"unheard_of": 1}])
def test_nothing_changes(log_settings, applied, values):
    """Values that are set already and unknown names change nothing."""
    log_settings.update(values)
    assert log_settings.current() == DEFAULTS
    assert applied == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("log_info", 1, "expect boolean for 'log_info'"),
        ("log_warning", "true", "expect boolean for 'log_warning'"),
        ("log_error", None, "expect boolean for 'log_error'"),
        ("log_verbose_level", True, "expect int32 for 'log_verbose_level'"),
        ("log_verbose_level", "1", "expect int32 for 'log_verbose_level'"),
        ("log_verbose_level", 1.0, "expect int32 for 'log_verbose_level'"),
        ("log_verbose_level", -1, "expect int32 for 'log_verbose_level'"),
        ("log_verbose_level", 2**31, "expect int32 for 'log_verbose_level'"),
        ("log_verbose_level", None, "expect int32 for 'log_verbose_level'"),
        ("log_format", 1, "expect string for 'log_format'"),
        ("log_format", "iso8601", "invalid argument for log_format, got: iso8601"),
        ("log_format", "x" * 1000, f"invalid argument for log_format, got: {'x' * 64}"),
    ],
)
def test_wrong_value(log_settings, applied, name, value, message):
    """It is refused in Triton's words, and nothing that came with it is done."""
    with pytest.raises(InferenceError) as caught:
        log_settings.update({"log_info": False, name: value})
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, message)
    assert log_settings.current() == DEFAULTS
    assert applied == []


@pytest.mark.parametrize("value", ["x", "", None, 1])
def test_file_cannot_be_changed(log_settings, applied, value):
    """A client must not choose the file that the server writes to."""
    with pytest.raises(InferenceError) as caught:
        log_settings.update({"log_info": False, "log_file": value})
    assert caught.value.code is Code.UNSUPPORTED
    assert caught.value.message == "log file location can not be updated through network protocol"
    assert applied == []


def test_lines_change_at_once(logger, capsys):
    """Kinds of lines come and go, and their format changes, while the server runs."""
    settings = ServerSettings(("models",))
    set_up_logging(settings)
    log_settings = LogSettings(settings, adjust_logging)

    def letters():
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logging.getLogger("pyruntime.frontends").log(level, "x")
            logging.getLogger("asyncio").log(level, "x")
        return "".join(line[0] for line in capsys.readouterr().err.splitlines())

    assert letters() == "IIWWEE"
    log_settings.update({"log_verbose_level": 1, "log_warning": False})
    assert letters() == "VVIIEE"
    log_settings.update({"log_verbose_level": 0, "log_info": False})
    assert letters() == "EE"
    assert not logger.isEnabledFor(logging.WARNING)
    log_settings.update({"log_format": "ISO8601"})
    assert letters() == "22"


def test_loggers_of_nobody_are_left_alone(logger):
    """A server inside another program, which logs as it pleases, changes nothing of that."""
    LogSettings(ServerSettings(("models",)), adjust_logging).update({"log_error": False})
    assert logger.level == logging.NOTSET


def test_appliers():
    """All appliers get each change."""
    told, also_told = [], []
    log_settings = LogSettings(ServerSettings(("models",)), told.append, also_told.append)
    log_settings.update({"log_info": False})
    log_settings.update({"log_verbose_level": 2})
    assert told == also_told
    assert [(each.log_info, each.log_verbose) for each in told] == [(False, 0), (False, 2)]

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pb_utils.Logger`: the log records of a model, with their levels and places."""

import inspect
import logging

import pytest

from pyruntime.stub.logs import LOGGER
from pyruntime.stub.pb_utils import Logger

LEVELS = [
    (Logger.log_info, logging.INFO),
    (Logger.log_warn, logging.WARNING),
    (Logger.log_error, logging.ERROR),
    (Logger.log_verbose, logging.DEBUG),
]


@pytest.fixture(autouse=True)
def _captured(caplog):
    """The logger is outside the hierarchy that caplog listens to."""
    LOGGER.addHandler(caplog.handler)
    yield
    LOGGER.removeHandler(caplog.handler)


@pytest.mark.parametrize(("log", "level"), LEVELS, ids=[log.__name__ for log, _ in LEVELS])
def test_by_function(log, level, caplog):
    """Each function has its level, and the line is the caller's."""
    log("100 % sure")
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (level, "100 % sure")
    assert record.pathname == __file__
    assert record.funcName == "test_by_function"


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (Logger.INFO, logging.INFO),
        (Logger.WARNING, logging.WARNING),
        (Logger.ERROR, logging.ERROR),
        (Logger.VERBOSE, logging.DEBUG),
    ],
)
def test_by_level(level, expected, caplog):
    """`log` takes a level, and the line is the caller's."""
    line = inspect.currentframe().f_lineno + 1
    Logger.log("message", level)
    (record,) = caplog.records
    assert (record.levelno, record.getMessage(), record.pathname, record.lineno) == (
        expected, "message", __file__, line,
    )  # fmt: skip


def test_default_level(caplog):
    """Without a level it is INFO."""
    Logger.log("message")
    assert [record.levelno for record in caplog.records] == [logging.INFO]


def test_whatever_a_model_does_to_logging(caplog):
    """A model's own configuration of logging concerns its own records."""
    # logging.config disables only loggers that are registered in loggerDict.
    assert LOGGER.name not in logging.root.manager.loggerDict
    logging.disable(logging.CRITICAL)
    try:
        Logger.log_info("message")
    finally:
        logging.disable(logging.NOTSET)
    assert [record.getMessage() for record in caplog.records] == ["message"]


def test_on_an_instance(caplog):
    """Models that make a Logger first work as well."""
    Logger().log_info("message")
    assert [record.getMessage() for record in caplog.records] == ["message"]


def test_levels_have_one_home():
    """The levels of the class are those of LogLevel."""
    assert tuple(Logger.LogLevel) == (Logger.INFO, Logger.WARNING, Logger.ERROR, Logger.VERBOSE)
    assert Logger.LogLevel.INFO is Logger.INFO

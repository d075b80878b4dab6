# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Log records of a model arrive at the host."""

import logging
import logging.config
import os
import sys

import pytest
from _pytest.logging import LogCaptureHandler

from pyruntime.stub.logs import LOGGER, MESSAGE_CHARS_MAX, HostHandler, install
from pyruntime.utils.errors import LocalError
from pyruntime.utils.messages import Log


@pytest.fixture
def root():
    """The root logger, as it is in a fresh process."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    call_handlers, basic_config = logging.Logger.callHandlers, logging.basicConfig
    logger.handlers.clear()
    logger.setLevel(logging.WARNING)

    def add_handler(handler):
        if not isinstance(handler, LogCaptureHandler):  # which pytest adds when the test begins
            type(logger).addHandler(logger, handler)

    logger.addHandler = add_handler
    yield logger
    del logger.addHandler
    LOGGER.handlers.clear()
    logging.Logger.callHandlers, logging.basicConfig = call_handlers, basic_config
    logger.__class__ = logging.RootLogger
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.fixture
def sent(root):
    logs = []
    install(logs.append)
    return logs


class TestInstalled:
    def test_sends_what_is_logged(self, sent):
        """Level, text, file and line of a record go to the host."""
        logging.getLogger("model").warning("%d %s", 7, "cats")
        (log,) = sent
        assert log == Log(logging.WARNING, "7 cats", __file__, log.line)
        assert log.line > 0

    def test_from_info_on(self, sent):
        """Debugging is off until a model asks for it."""
        logging.info("yes")
        logging.debug("no")
        assert [log.message for log in sent] == ["yes"]

    def test_exceptions(self, sent):
        """A traceback is part of the message."""
        try:
            raise ValueError("no")
        except ValueError:
            logging.exception("failed")
        (log,) = sent
        assert log.message.startswith("failed\nTraceback (most recent call last):\n")
        assert log.message.endswith("ValueError: no")

    def test_long_messages_are_cut(self, sent):
        """No line of a log is longer than people read."""
        logging.warning("x" * (2 * MESSAGE_CHARS_MAX))
        assert len(sent[0].message) == MESSAGE_CHARS_MAX

    def test_replaced_by_the_model(self, sent, root, capsys):
        """A model that configures logging by force has its own way."""
        logging.basicConfig(force=True, stream=sys.stderr, format="mine %(message)s")
        logging.warning("hello")
        assert sent == []
        assert capsys.readouterr().err == "mine hello\n"


class TestConfiguredByTheModel:
    def test_basic_config_does_all_that_it_is_told(self, sent, root, tmp_path):
        """File, level and format are the model's, and nothing goes to the host."""
        file = tmp_path / "log"
        logging.basicConfig(filename=file, level=logging.DEBUG, format="mine %(message)s")
        logging.debug("hello")
        root.handlers[0].close()
        assert file.read_text() == "mine hello\n"
        assert sent == []

    def test_a_configuration_without_a_level_has_that_of_python(self, sent, root, capsys):
        """INFO is our default only where the model configures nothing, also for loggers that were used before."""
        logging.getLogger("early").info("before")
        logging.basicConfig(stream=sys.stderr, format="%(message)s")
        logging.getLogger("early").info("no")
        logging.warning("yes")
        assert [log.message for log in sent] == ["before"]
        assert capsys.readouterr().err == "yes\n"

    def test_a_configuration_without_anything_is_one_too(self, sent, capsys):
        logging.warning("before")
        logging.basicConfig()
        logging.warning("hello")
        assert [log.message for log in sent] == ["before"]
        assert capsys.readouterr().err == "WARNING:root:hello\n"

    def test_a_level_that_the_model_has_chosen_stays(self, sent, root, capsys):
        root.setLevel(logging.DEBUG)
        logging.debug("sent")
        root.addHandler(logging.StreamHandler(sys.stderr))
        logging.debug("printed")
        assert [log.message for log in sent] == ["sent"]
        assert capsys.readouterr().err == "printed\n"

    def test_a_logger_with_a_handler_writes_a_record_once(self, sent, capsys):
        own = logging.getLogger("own")
        own.addHandler(logging.StreamHandler(sys.stderr))
        try:
            own.getChild("child").warning("hello")
        finally:
            own.handlers.clear()
        assert sent == []
        assert capsys.readouterr().err == "hello\n"

    def test_a_logger_with_a_handler_has_the_level_of_python_unless_the_model_gives_it_one(self, sent, capsys):
        """As in Triton, where the root logger has WARNING."""
        logger = logging.getLogger("levels")
        logger.addHandler(logging.StreamHandler(sys.stdout))
        below = logging.getLogger("levels.below")
        try:
            for each in (logger, below):
                each.info("no")
                each.warning("%s", each.name)
            logger.setLevel(logging.DEBUG)
            below.debug("yes")
        finally:
            logger.handlers.clear()
            logger.setLevel(logging.NOTSET)
        assert capsys.readouterr().out.splitlines() == ["levels", "levels.below", "yes"]
        assert sent == []

    def test_the_logger_of_triton_has_all_levels(self, sent):
        LOGGER.info("info")
        LOGGER.debug("debug")
        assert [log.message for log in sent] == ["info", "debug"]

    def test_a_level_of_the_root_counts_for_a_logger_with_a_handler(self, sent, root, capsys):
        logger = logging.getLogger("levels")
        logger.addHandler(logging.StreamHandler(sys.stdout))
        root.setLevel(logging.INFO)
        try:
            logger.info("yes")
        finally:
            logger.handlers.clear()
        assert capsys.readouterr().out.splitlines() == ["yes"]

    def test_records_of_a_library_with_a_null_handler_are_sent(self, sent):
        """It leaves to the application what becomes of them, and the model has configured nothing."""
        library = logging.getLogger("library")
        library.addHandler(logging.NullHandler())
        library.info("hello")
        assert [log.message for log in sent] == ["hello"]

    def test_a_dictionary_replaces_the_default(self, sent, root, capsys):
        handlers = {"h": {"class": "logging.StreamHandler", "stream": sys.stderr}}
        logging.config.dictConfig(
            {
                "version": 1,
                "disable_existing_loggers": False,
                "handlers": handlers,
                "root": {"handlers": ["h"], "level": "INFO"},
            }
        )
        logging.info("hello")
        assert sent == []
        assert capsys.readouterr().err == "hello\n"

    def test_the_logger_of_triton_is_not_affected(self, sent):
        logging.basicConfig(level=logging.CRITICAL)
        LOGGER.warning("hello")
        assert [log.message for log in sent] == ["hello"]


class TestTrouble:
    def test_send_fails(self, root, capsys, monkeypatch):
        """A log line that cannot be sent is no reason for a model to fail."""

        def send(log):
            raise BrokenPipeError

        monkeypatch.setattr(logging, "raiseExceptions", True)
        install(send)
        logging.warning("hello")
        assert "hello" in capsys.readouterr().err

    def test_bad_arguments(self, capsys, monkeypatch):
        """A record that cannot be formatted is reported on standard error and not sent."""
        logs = []
        monkeypatch.setattr(logging, "raiseExceptions", True)
        HostHandler(logs.append).handle(logging.makeLogRecord({"msg": "%d", "args": ("seven",), "levelno": 30}))
        assert logs == []
        assert "seven" in capsys.readouterr().err

    def test_in_a_forked_process(self, root, capsys, monkeypatch):
        """A child that a model forked prints, since the channel is not its own."""
        logs = []
        handler = HostHandler(logs.append)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        handler.handle(logging.makeLogRecord({"msg": "from a child", "levelno": 30}))
        assert logs == []
        assert capsys.readouterr().err == "from a child\n"

    def test_after_the_end_of_the_model(self, root, capsys):
        """What its exit handlers log is printed, as the channel is closed by then."""

        def send(log):
            raise LocalError("Log is not legal while CLOSED")

        install(send)
        logging.warning("at the exit")
        assert capsys.readouterr().err == "at the exit\n"

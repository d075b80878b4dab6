# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The server for calls of a model's functions when several models are loaded, and where their logs go."""

import logging

import pytest

from pyruntime.stub import host
from pyruntime.stub.logs import LOGGER
from pyruntime.testing import load_model

ANSWERS = "class TritonPythonModel:\n    def execute(self, requests): pass"


class TestWhoseServer:
    """The server that a function of the model asks."""

    SOURCE = """
    from concurrent.futures import ThreadPoolExecutor

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse(parameters={"folder": getattr(self, HOW)()}) for _ in requests]
        def in_execute(self):
            return pb_utils.get_model_dir()
        def in_a_thread(self):
            return self.in_a_pool(lambda: pb_utils.get_model_dir())
        def in_a_pool(self, function=pb_utils.get_model_dir):
            try:
                with ThreadPoolExecutor() as pool:
                    return pool.submit(function).result()
            except pb_utils.TritonModelException as exc:
                return str(exc)
        def in_to_thread(self):
            return asyncio.run(asyncio.to_thread(pb_utils.get_model_dir))
    """

    def folders_of(self, write_model, how, *names):
        """The folders that models report; each model is asked while all of them are loaded."""
        source = self.SOURCE.replace("HOW", repr(how))
        models = [load_model(write_model(source, name=name)) for name in names]
        try:
            return [model.infer({"IN": [1]}).parameters["folder"] for model in models]
        finally:
            for model in models:
                model.close()

    @pytest.mark.parametrize("how", ["in_execute", "in_a_thread", "in_to_thread"])
    def test_is_the_models_own(self, write_model, tmp_path, how):
        """In the model's thread, in its context, and wherever its code runs."""
        assert self.folders_of(write_model, how, "a", "b") == [str(tmp_path / "a/1"), str(tmp_path / "b/1")]

    def test_cannot_be_told(self, write_model, tmp_path):
        """A thread in which no code of a model runs could be anybody's; where there is one model it is that one's."""
        assert self.folders_of(write_model, "in_a_pool", "a") == [str(tmp_path / "a/1")]
        first, second = self.folders_of(write_model, "in_a_pool", "b", "c")
        assert first == second
        assert "several models are loaded, and it cannot be told which of them" in first

    def test_of_a_test_is_none(self, write_model):
        """The test itself is no model."""
        with load_model(write_model(ANSWERS)) as model:
            with pytest.raises(Exception, match="this is not possible outside a model"):
                host.get_host()
            assert model.is_ready()


def test_logger(write_model, caplog):
    """Log records of models reach the root logger while a model is loaded."""
    with load_model(write_model(ANSWERS)):
        assert LOGGER.parent is logging.getLogger()
        LOGGER.warning("heard")
    assert "heard" in caplog.messages
    assert LOGGER.parent is None

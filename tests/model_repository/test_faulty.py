# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A model that fails on purpose. Its commands `exit` and `segfault` are not tested: they would end the tests."""

import pytest

from pyruntime.testing import Code, ContradictionWarning, InferenceError

PREFIX = "Failed to process the request(s) for model 'faulty_0_0', message: "


@pytest.fixture
def model(load_model):
    """The model."""
    return load_model("model_repository/faulty")


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("error", Code.INVALID_ARG, "refused on purpose"),
        ("raise", Code.INTERNAL, f"{PREFIX}ValueError: raised on purpose"),
        ("wrong_count", Code.INTERNAL, f"{PREFIX}Number of InferenceResponse objects do not match"),
        ("wrong_type", Code.INTERNAL, f"{PREFIX}Expected an 'InferenceResponse' object in the execute function return"),
    ],
)
def test_failures(model, command, code, message):
    """Each fails in its own way, and the next request works again."""
    with pytest.raises(InferenceError) as caught:
        model.infer({"COMMAND": [command]})
    assert caught.value.code is code
    assert caught.value.message.startswith(message)
    assert model.infer({"COMMAND": ["ok"]})["OUTPUT"].tolist() == [b"ok"]


def test_unknown_output(model):
    """An output that the configuration does not declare is dropped, and a test is warned of it."""
    with pytest.warns(ContradictionWarning, match="'NOT_IN_CONFIG' of model 'faulty' is dropped"):
        assert model.infer({"COMMAND": ["unknown_output"]}).outputs == {}


def test_cause(model):
    """The exception of the model is the cause of the error."""
    with pytest.raises(InferenceError) as caught:
        model.infer({"COMMAND": ["raise"]})
    assert repr(caught.value.__cause__) == "ValueError('raised on purpose')"


def test_output(model, capsys, caplog):
    """pytest captures the prints and the log of the model."""
    caplog.set_level("INFO")
    model.infer({"COMMAND": ["print"]})
    assert capsys.readouterr() == ("printed on purpose\n", "printed on purpose, to stderr\n")
    assert caplog.messages == ["logged on purpose", "logged on purpose, to the server's log"]

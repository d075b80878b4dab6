# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A stream of words."""

import pytest


@pytest.fixture
def model(load_model, monkeypatch):
    """The model, which here does not take its time."""
    model = load_model("model_repository/decoupled")
    monkeypatch.setattr(model.module, "TOKEN_S", 0)
    return model


def words(results):
    """The responses, in order."""
    return [(result["INDEX"].item(), result["TOKEN"].item().decode()) for result in results]


def test_word_by_word(model):
    """One response for each word."""
    assert words(model.stream({"TEXT": ["to be"], "REPEAT": [2]})) == list(enumerate(["to", "be", "to", "be"]))


def test_nothing_to_say(model):
    """A stream may be empty."""
    assert list(model.stream({"TEXT": [""]})) == []


def test_hanging_up(model, caplog):
    """The model stops when its client hangs up."""
    responses = model.stream({"TEXT": ["on and on"], "REPEAT": [10_000]})
    assert words([next(responses), next(responses)]) == [(0, "on"), (1, "and")]
    responses.close()
    model.close()
    assert "the client hung up after" in caplog.text


def test_several_at_once(model):
    """The second stream does not wait for the end of the first."""
    first = model.stream({"TEXT": ["on and on"], "REPEAT": [10_000]})
    assert words(model.stream({"TEXT": ["at once"]})) == [(0, "at"), (1, "once")]
    assert not first.is_complete
    first.close()

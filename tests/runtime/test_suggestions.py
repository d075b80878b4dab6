# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
from pyruntime.runtime.suggestions import NAME_CHARS_MAX, SUGGESTIONS_MAX, did_you_mean, similar


def test_similar_names():
    """The most similar name comes first, and there are never more than a few."""
    assert similar("http-prt", ["grpc-port", "http-port", "other"]) == ["http-port"]
    assert len(similar("aaaaa", [f"aaaa{letter}" for letter in "bcdefg"])) == SUGGESTIONS_MAX


def test_question():
    """It is the end of a sentence, or nothing."""
    assert did_you_mean("a-port", ["b-port", "c-port"], prefix="--") == "; did you mean --c-port or --b-port?"
    assert did_you_mean("x", ["port"]) == ""


def test_long_names():
    """A text that is too long for a name is like no other."""
    assert similar("a" * NAME_CHARS_MAX, ["a" * NAME_CHARS_MAX]) != []
    assert similar("a" * (NAME_CHARS_MAX + 1), ["a" * (NAME_CHARS_MAX + 1)]) == []

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Ensembles and the models that they depend on."""

import pytest

from pyruntime.runtime.repository.dependencies import Dependencies


def dependencies(**ensembles):
    made = Dependencies()
    for name, steps in ensembles.items():
        made.add(name, steps)
    return made


def test_above():
    """The ensembles that a model is a step of, until they are forgotten."""
    made = dependencies(e="aba", f="b")
    assert (made.steps("e"), made.steps("a")) == (("a", "b"), ())
    assert (made.above("b"), made.above("e")) == (["e", "f"], [])
    made.forget("e")
    assert made.above("b") == ["f"]
    made.forget("e")
    assert repr(made) == "<Dependencies [1 ensembles]>"


@pytest.mark.parametrize(
    ("ensembles", "text"),
    [
        ({"e": "e"}, "e -> ... -> e -> e"),
        ({"e": "af", "f": "be"}, "e -> ... -> f -> e"),
        ({"e": "f", "f": "g", "g": "e"}, "e -> ... -> g -> e"),
        ({"e": "fg", "f": "h", "g": "h"}, ""),
        ({"e": "f", "f": "g", "g": "f"}, ""),  # e is not in it
    ],
)
def test_cycle(ensembles, text):
    """A cycle has Triton's words."""
    expected = f"circular dependency between ensembles: {text}" if text else ""
    assert dependencies(**ensembles).cycle("e") == expected


def test_changes():
    """The value of an ensemble changes with each change of its models, and with no other."""
    made = dependencies(e="ab")
    before = made.changes("e")
    made.changed("c")
    assert made.changes("e") == before
    made.changed("b")
    assert made.changes("e") != before


@pytest.mark.parametrize(
    ("serving", "explicit", "unneeded"),
    [("", "", "abcf"), ("", "a", "bcf"), ("g", "", "abf"), ("", "f", "ab")],
)
def test_unneeded(serving, explicit, unneeded):
    """Models that are asked for by name stay, and so do those of another ensemble that serves, and what it needs."""
    made = dependencies(e="abf", f="c", g="c")
    made.explicit.update(explicit)
    assert sorted(made.unneeded("e", lambda name: name in serving)) == list(unneeded)

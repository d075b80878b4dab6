# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A model with an environment of its own. A unit test runs in that of the tests, where its package need not be."""

import sys
import types

import pytest

from pyruntime.testing import LoadError


def test_with_a_stand_in(load_model, monkeypatch):
    """A test can replace a package that it lacks."""
    package = types.ModuleType("text_unidecode")
    package.unidecode = lambda text: text.replace("ß", "ss")
    monkeypatch.setitem(sys.modules, "text_unidecode", package)
    result = load_model("model_repository/environment").infer({"TEXT": ["straße", "stone"]})
    assert result["ASCII"].tolist() == [b"strasse", b"stone"]


def test_without(load_model, monkeypatch):
    """Without the package, the load fails with the error of the import."""
    monkeypatch.setitem(sys.modules, "text_unidecode", None)
    with pytest.raises(LoadError, match="ModuleNotFoundError: import of text_unidecode halted"):
        load_model("model_repository/environment")

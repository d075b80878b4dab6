# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Where the fast path is off there is something in the place of each native codec, and it always misses."""

import importlib.util
import inspect

import pytest

from pyruntime.runtime.native import _codecs, plain
from pyruntime.utils import fast_path


def public(names):
    return {name for name in names if not name.startswith("_")}


def test_there_is_every_codec():
    """A codec that could not be switched off would be in `_codecs` and not here."""
    assert set(plain.__all__) == public(vars(_codecs))


def load(monkeypatch, is_off):
    """The module, as a process has it where the fast path is on, or off."""
    monkeypatch.setenv(fast_path.VARIABLE, "1" if is_off else "")
    spec = importlib.util.spec_from_file_location("plain_again", plain.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_codecs_are_native(monkeypatch):
    """They are the objects of the extension, with nothing around them."""
    module = load(monkeypatch, is_off=False)
    assert {name: getattr(module, name) for name in plain.__all__} == {
        name: getattr(_codecs, name) for name in plain.__all__
    }


@pytest.mark.parametrize("name", plain.__all__)
def test_misses(monkeypatch, name):
    """Whatever they are given, they leave it to Python."""
    native, miss = getattr(_codecs, name), getattr(load(monkeypatch, is_off=True), name)
    if not inspect.isclass(native):
        assert miss(b"{}", 1, None) is None
        return
    reader = miss([], {}, 1)
    methods = public(vars(native))
    assert methods
    assert [getattr(reader, method)(b"{}", 2, 0) for method in methods] == [None] * len(methods)

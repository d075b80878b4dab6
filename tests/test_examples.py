# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Properties are tried with the same examples in every run."""

import sys
from types import ModuleType

from hypothesis import given, settings
from hypothesis import strategies as st


def tried():
    """The examples of one property."""
    found = []

    @settings(settings.get_profile("tests"), max_examples=300)
    @given(st.integers(), st.text())
    def property_(number, text):
        found.append((number, text))

    property_()
    return found


def test_the_same_each_time(tmp_path, monkeypatch):
    """Also with a module that was not imported before, and has numbers and texts of its own."""
    before = tried()
    code = tmp_path / "code.py"
    code.write_text("".join(f"found = {number}, 'text {number}'\n" for number in range(70_000, 70_300)))
    module = ModuleType("new")
    module.__file__ = str(code)
    monkeypatch.setitem(sys.modules, "new", module)
    assert tried() == before

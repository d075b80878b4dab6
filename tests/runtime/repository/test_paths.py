# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Names of files in configurations: those below a folder, and those that lead out of it."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.repository.paths import path_below


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("a", "/m/a"),
        ("a/b", "/m/a/b"),
        ("./a//b/", "/m/a/b"),
        ("a/../b", "/m/b"),
        ("a/..", "/m"),
        (".", "/m"),
        ("", "/m"),
        ("...", "/m/..."),
    ],
)
def test_inside(name, path):
    """A name is resolved as text."""
    assert path_below("/m", name) == path


@pytest.mark.parametrize("name", ["..", "../a", "../m/a", "a/../../m", "/m/a", "/", "//m/a", "/.."])
def test_outside(name):
    """A name that leads out of the folder means nothing, also where it comes back; an absolute one never does."""
    assert path_below("/m", name) is None


@given(st.lists(st.sampled_from(["a", "b", ".", "..", "", "m"]), max_size=8).map("/".join))
def test_any_name(name):
    """A path is always below the folder, and without links it is the file that the system would open."""
    path = path_below("/m", name)
    if path is not None:
        assert path == os.path.normpath(f"/m/{name}")
        assert f"{path}/".startswith("/m/")

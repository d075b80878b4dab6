# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of an environment's recipe, and when two recipes are equal."""

from dataclasses import replace

import pytest

from pyruntime.runtime.environments.recipe import Recipe, digest, effective_lines, included_file, requirement_name

RECIPE = Recipe("/usr/bin/python3", "3.11.7 linux x86_64 glibc-2.36", ("scipy",), (), "/models/m")


def test_effective_lines():
    """Comments, blank lines and continuations mean nothing; a fragment of a URL is no comment."""
    text = "# needs\nscipy  >= 1 # why\n\n  \ntorch \\\n  --hash=sha256:1 \\\r\n --hash=sha256:2\nhttps://x/y#egg=z\n"
    assert effective_lines(text) == [
        "scipy >= 1",
        "torch --hash=sha256:1 --hash=sha256:2",
        "https://x/y#egg=z",
    ]


@pytest.mark.parametrize(
    ("line", "included"),
    [
        ("-r more.txt", ("more.txt", False)),
        ("-rmore.txt", ("more.txt", False)),
        ("--requirement more.txt", ("more.txt", False)),
        ("--requirement=more.txt", ("more.txt", False)),
        ("-c limits.txt", ("limits.txt", True)),
        ("--constraint=limits.txt", ("limits.txt", True)),
        ("-r https://example.org/more.txt", None),
        ("scipy", None),
        ("--require-hashes", None),
    ],
)
def test_included_file(line, included):
    """A requirements file may include others, as requirements or as constraints."""
    assert included_file(line) == included


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("numpy", "numpy"),
        ("NumPy==1.26.4", "numpy"),
        ("numpy >= 1, < 3", "numpy"),
        ("numpy[extra]; python_version < '3.9'", "numpy"),
        ("numpy @ https://example.org/numpy.whl", "numpy"),
        ("ruamel_yaml.Clib~=0.2", "ruamel-yaml-clib"),
        ("numpy-financial", "numpy-financial"),
        ("--pre", ""),
        ("./numpy", ""),
        ("git+https://example.org/numpy", ""),
    ],
)
def test_requirement_name(line, name):
    """Names are compared in their normal form."""
    assert requirement_name(line) == name


@pytest.mark.parametrize(
    ("requirements", "needs"),
    [
        (("scipy",), True),
        ((), True),
        (("scipy", "Numpy<2"), False),
        (("scipy==1 --hash=sha256:0",), False),
        (("--require-hashes", "scipy==1"), False),
    ],
)
def test_needs_numpy(requirements, needs):
    """numpy is asked for on top, unless it is asked for, or nothing may be added."""
    assert replace(RECIPE, requirements=requirements).needs_numpy is needs


def test_constraint_is_no_requirement():
    """A constraint on numpy does not ask for it."""
    assert replace(RECIPE, constraints=("numpy<2",)).needs_numpy


def test_key_is_of_the_content():
    """Models in different folders, and with different paths of the same Python, share an environment."""
    assert replace(RECIPE, folder="/elsewhere", python="/usr/local/bin/python3").key == RECIPE.key


@pytest.mark.parametrize(
    "change",
    [
        {"version": "3.12.1 linux x86_64 glibc-2.36"},
        {"requirements": ("scipy<2",)},
        {"requirements": ("scipy", "rich")},
        {"constraints": ("scipy<2",)},
        {"requirements": (), "constraints": ("scipy",)},
    ],
)
def test_key_changes(change):
    """Each change that may result in another environment results in another key."""
    assert replace(RECIPE, **change).key != RECIPE.key


@pytest.mark.parametrize("line", ["-e .", "./lib", "lib/x.whl", "x.whl", "x @ file:lib", "--find-links wheels"])
def test_key_of_what_lies_beside(line):
    """The key includes the folder if a path is relative to it."""
    recipe = replace(RECIPE, requirements=(line,))
    assert replace(recipe, folder="/elsewhere").key != recipe.key


def test_digest():
    """Keys are names of files, and tell their parts apart."""
    assert digest("built", "ab", "c") != digest("built", "a", "bc")
    assert digest("built", "\udcff").startswith("built-")
    assert "/" not in digest("read", "/a/b")

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from pyruntime.runtime.cli.skeleton import NAME_LENGTH_MAX, NameProblem, Names

OF_BOTH = ["a", "A", "scale", "my_model", "resnet50", "a__b", "x" * NAME_LENGTH_MAX]
OF_NEITHER = ["", " ", "1a", "_a", "-a", ".a", "a.b", "a/b", "../a", "a b", "a\n", "ä", "a\0", "@name@", "x" * 201]


@pytest.mark.parametrize("make", [Names.of_model, Names.of_backend])
@pytest.mark.parametrize("name", OF_BOTH)
def test_names(make, name):
    """Names that are names of files, modules and libraries too."""
    assert make(name).name == name


@pytest.mark.parametrize("make", [Names.of_model, Names.of_backend])
@pytest.mark.parametrize("name", OF_NEITHER)
def test_no_names(make, name):
    """Characters that a name cannot have, and names that lead to another folder."""
    with pytest.raises(NameProblem):
        make(name)


def test_names_of_models_alone():
    """A library and a class cannot have every name that a model can."""
    assert Names.of_model("my-model").class_name == "MyModel"
    with pytest.raises(NameProblem, match="letters, digits and"):
        Names.of_backend("my-backend")


def test_taken():
    """A backend that would never be looked for."""
    with pytest.raises(NameProblem, match="take another name"):
        Names.of_backend("python")
    assert Names.of_model("python").name == "python"


@pytest.mark.parametrize(
    ("name", "class_name"), [("scale", "Scale"), ("my_model", "MyModel"), ("a__b_", "AB"), ("ResNet_v2", "ResNetV2")]
)
def test_class_name(name, class_name):
    """As classes are written."""
    assert Names.of_backend(name).class_name == class_name


def test_fill():
    """Both placeholders, wherever they are."""
    assert Names.of_backend("my_b").fill("@name@ @Class@Model lib@name@.so ${name} @other@") == (
        "my_b MyBModel libmy_b.so ${name} @other@"
    )


@pytest.mark.parametrize(
    ("template", "target"),
    [
        ("config.pbtxt.in", "config.pbtxt"),
        ("src/@name@.cc.in", "src/b.cc"),
        ("@name@/1/dot_keep.in", "b/1/.keep"),
        ("CMakeLists.txt.in", "CMakeLists.txt"),
    ],
)
def test_target(template, target):
    """Paths of files, and of hidden ones."""
    assert Names.of_backend("b").target(PurePosixPath(template)) == PurePosixPath(target)

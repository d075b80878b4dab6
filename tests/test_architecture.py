# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The structure of the host: imports go down, and the drawing shows them as they are."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts/architecture"


@pytest.fixture(scope="module")
def architecture():
    """The script that draws the structure, as a module."""
    loader = SourceFileLoader("architecture", str(SCRIPT))
    module = module_from_spec(spec_from_loader("architecture", loader))
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def graph(architecture):
    return architecture.import_graph(architecture.modules())


def test_no_cycles(architecture, graph):
    """No module imports itself by way of others, not even for types alone."""
    assert architecture.find_cycle(graph) == []


def test_cycles_are_found(architecture):
    """The check itself works."""
    assert architecture.find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert architecture.find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_imports_go_down(architecture, graph):
    """Every package stands in a layer, and imports only those of lower layers."""
    packages = architecture.package_graph(graph)
    assert packages.keys() == {package for layer in architecture.LAYERS for package in layer}
    assert architecture.wrong_imports(packages) == []


def test_drawing_is_up_to_date(architecture):
    """scripts/architecture draws it anew."""
    assert architecture.main(["--check"]) == 0

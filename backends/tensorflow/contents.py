# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the operations of a SavedModel, by the numbers of fields in TensorFlow's files.

A file does not say which operations are TensorFlow's own. Those are named in the code that the package tensorflow has
for them, which is read and not imported. Without the package no operation counts as custom.
"""

from __future__ import annotations

import glob
import importlib.util
import mmap
import os
import re
from typing import Set

from pyruntime.backends.toolkit.contents import Contents
from pyruntime.backends.toolkit.protobuf import messages, text

FILENAME = "saved_model.pb"
_SAVED_GRAPH = 2
_META_GRAPH = 2
_GRAPH_NODE, _GRAPH_LIBRARY = 1, 2
_LIBRARY_FUNCTION = 1
_FUNCTION_SIGNATURE, _FUNCTION_NODE = 1, 3
_SIGNATURE_NAME = 1
_NODE_OPERATION = 2
_WRAPPERS = os.path.join("python", "ops", "gen_*.py")
_WRAPPED = re.compile(r'_apply_op_helper\(\s*"(\w+)"')


def read_contents(path: str) -> Contents:
    """The contents of a SavedModel, a folder. Raises OSError and ValueError."""
    with open(os.path.join(path, FILENAME), "rb") as file:
        # Unmapped with the last view of it, which the traceback of an error may have.
        model = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    contents = Contents()
    own = own_operations()
    for saved in messages(model, _SAVED_GRAPH):
        for graph in messages(saved, _META_GRAPH):
            _read_graph(contents, graph, own)
    return contents


def own_operations() -> Set[str]:
    """The names of TensorFlow's operations; none if this environment does not have the package."""
    package = importlib.util.find_spec("tensorflow")
    names: Set[str] = set()
    for folder in (package.submodule_search_locations or ()) if package else ():
        for path in glob.glob(os.path.join(folder, _WRAPPERS)):
            with open(path, encoding="utf-8") as file:
                names.update(_WRAPPED.findall(file.read()))
    return names


def _read_graph(contents: Contents, graph: memoryview, own: Set[str]) -> None:
    functions = [each for library in messages(graph, _GRAPH_LIBRARY) for each in messages(library, _LIBRARY_FUNCTION)]
    called = {text(each, _SIGNATURE_NAME) for function in functions for each in messages(function, _FUNCTION_SIGNATURE)}
    nodes = [*messages(graph, _GRAPH_NODE), *(node for each in functions for node in messages(each, _FUNCTION_NODE))]
    for node in nodes:
        name = text(node, _NODE_OPERATION)
        if name not in called:  # a function is made of the nodes that are read anyhow
            # A name that begins with an underscore is internal to TensorFlow.
            contents.add(name, bool(own) and name not in own and not name.startswith("_"))

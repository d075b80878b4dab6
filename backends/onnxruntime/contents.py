# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the operations and the files of weights of an ONNX model, by the numbers of fields in onnx.proto."""

from __future__ import annotations

import mmap
import os
from typing import Set, Tuple

from pyruntime.backends.toolkit.contents import Contents
from pyruntime.backends.toolkit.protobuf import messages, text

_MODEL_GRAPH, _MODEL_FUNCTION = 7, 25
_GRAPH_NODE, _GRAPH_TENSOR = 1, 5
_FUNCTION_NAME, _FUNCTION_NODE, _FUNCTION_DOMAIN = 1, 7, 10
_NODE_OPERATION, _NODE_ATTRIBUTE, _NODE_DOMAIN = 4, 5, 7
_ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH, _ATTRIBUTE_TENSORS, _ATTRIBUTE_GRAPHS = 5, 6, 10, 11
_TENSOR_EXTERNAL = 13
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
# The domains of the operations that every package of ONNX Runtime has.
_OWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training")
_OWN_PREFIXES = ("com.microsoft", "com.ms.internal", "org.pytorch.aten")


def read_contents(path: str) -> Contents:
    """The contents of the model file, or of the one in a folder of its name. Raises OSError and ValueError."""
    if os.path.isdir(path):
        path = os.path.join(path, os.path.basename(path))
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ValueError("the file is empty")
        # Unmapped with the last view of it, which the traceback of an error may have.
        return _read(memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)))


def _read(model: memoryview) -> Contents:
    contents = Contents()
    functions = list(messages(model, _MODEL_FUNCTION))
    own = {(text(each, _FUNCTION_DOMAIN), text(each, _FUNCTION_NAME)) for each in functions}
    for graph in messages(model, _MODEL_GRAPH):
        _read_graph(contents, graph, own)
    for function in functions:
        _read_nodes(contents, function, _FUNCTION_NODE, own)
    return contents


def _read_graph(contents: Contents, graph: memoryview, own: Set[Tuple[str, str]]) -> None:
    for tensor in messages(graph, _GRAPH_TENSOR):
        _read_tensor(contents, tensor)
    _read_nodes(contents, graph, _GRAPH_NODE, own)


def _read_nodes(contents: Contents, graph: memoryview, number: int, own: Set[Tuple[str, str]]) -> None:
    for node in messages(graph, number):
        domain, name = text(node, _NODE_DOMAIN), text(node, _NODE_OPERATION)
        is_own = domain in _OWN_DOMAINS or domain.startswith(_OWN_PREFIXES)
        if (domain, name) not in own:  # a function of the model is made of the nodes that are read anyhow
            contents.add(name if is_own and not domain else f"{domain}::{name}", not is_own)
        for attribute in messages(node, _NODE_ATTRIBUTE):
            for each in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS):
                for inner in messages(attribute, each):
                    _read_graph(contents, inner, own)
            for each in (_ATTRIBUTE_TENSOR, _ATTRIBUTE_TENSORS):
                for tensor in messages(attribute, each):
                    _read_tensor(contents, tensor)


def _read_tensor(contents: Contents, tensor: memoryview) -> None:
    for entry in messages(tensor, _TENSOR_EXTERNAL):
        if text(entry, _ENTRY_KEY) == "location":
            location = text(entry, _ENTRY_VALUE)
            contents.companions[location] = location

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the operations and the arguments of a PyTorch model from its archive or its code. Runs none of it."""

from __future__ import annotations

import ast
import json
import os
import pickletools
import re
import zipfile
from typing import Any, Dict, Iterator

from pyruntime.backends.pytorch.archives import EXPORTED, PICKLE, SOURCE, TORCHSCRIPT, UNKNOWN, WEIGHTS, kind_of
from pyruntime.backends.toolkit.contents import Contents

_WEIGHTS_SUFFIXES = (".safetensors", ".pt")
# The namespaces of the operations that torch itself registers.
_OWN_NAMESPACES = frozenset({"aten", "prim", "prims", "higher_order", "inductor", "quantized", "sparse", "profiler"})
# A node of an exported program, `torch.ops.<namespace>.<operation>.<overload>`, and a call in code of TorchScript.
_TARGET = re.compile(r"torch\.ops\.(\w+)\.(\w+)")
_CALL = re.compile(r"\bops\.(\w+)\.(\w+)\(|\btorch\.(\w+)\(")
# The signature of `forward` in code of TorchScript, which is also one of Python.
_FORWARD = r"^class {}\(.*?^  (def forward\(.*?\)) ->"


def read_contents(path: str) -> Contents:
    """The contents of a file of any kind. Raises OSError and ValueError."""
    if path.endswith(".py"):
        weights = sorted(name for name in os.listdir(os.path.dirname(path)) if name.endswith(_WEIGHTS_SUFFIXES))
        return _of_source(path, {name: name for name in weights})
    kind = kind_of(path)
    if kind in (WEIGHTS, PICKLE, UNKNOWN):
        source = os.path.join(os.path.dirname(path), SOURCE)
        if not os.path.isfile(source):
            return Contents()
        return _of_source(source, {SOURCE: SOURCE})
    with zipfile.ZipFile(path) as archive:
        if kind == TORCHSCRIPT:
            return _of_torchscript(archive)
        return _of_exported(archive) if kind == EXPORTED else Contents()


def _of_torchscript(archive: zipfile.ZipFile) -> Contents:
    contents = Contents()
    code = {name.partition("/code/")[2]: name for name in archive.namelist() if "/code/" in name}
    for inside, name in code.items():
        if inside.endswith(".py"):
            for namespace, custom, own in _CALL.findall(archive.read(name).decode()):
                _add(contents, namespace or "aten", custom or own)
    module, _, class_name = _root_class(archive).rpartition(".")
    source = code.get(f"{module.replace('.', '/')}.py")
    if source is not None:
        pattern = re.compile(_FORWARD.format(re.escape(class_name)), re.MULTILINE | re.DOTALL)
        found = pattern.search(archive.read(source).decode())
        if found is not None:
            (forward,) = ast.parse(f"{found.group(1)}: pass").body
            assert isinstance(forward, ast.FunctionDef)
            _add_arguments(contents, forward.args)
    return contents


def _root_class(archive: zipfile.ZipFile) -> str:
    """The qualified name of the module's class: the first global of its pickle, which is not loaded."""
    data = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
    for opcode, argument, _ in pickletools.genops(archive.read(data)):
        if opcode.name == "GLOBAL" and isinstance(argument, str):
            return argument.replace(" ", ".")
    return ""


def _of_exported(archive: zipfile.ZipFile) -> Contents:
    contents = Contents()
    names = [name for name in archive.namelist() if "/models/" in name or name.endswith("exported_program.json")]
    for name in names:
        if name.endswith(".json"):
            for target in _targets(json.loads(archive.read(name))):
                found = _TARGET.match(target)
                if found is not None:
                    _add(contents, *found.groups())
    return contents


def _targets(value: Any) -> Iterator[str]:
    """The targets of all nodes, those of graphs in graphs as well."""
    if isinstance(value, dict):
        target = value.get("target")
        if isinstance(target, str) and "inputs" in value:
            yield target
        for each in value.values():
            yield from _targets(each)
    elif isinstance(value, list):
        for each in value:
            yield from _targets(each)


def _add(contents: Contents, namespace: str, operation: str) -> None:
    contents.add(f"{namespace}::{operation}", namespace not in _OWN_NAMESPACES)


def _of_source(path: str, companions: Dict[str, str]) -> Contents:
    """The arguments of `forward` of the torch.nn.Module in a file of Python code: the first class by name counts."""
    with open(path, "rb") as file:
        tree = ast.parse(file.read(), path)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    contents = Contents(companions=companions)
    for each in sorted(classes, key=lambda node: node.name):
        for node in each.body:
            if isinstance(node, ast.FunctionDef) and node.name == "forward":
                _add_arguments(contents, node.args)
                return contents
    return contents


def _add_arguments(contents: Contents, forward: ast.arguments) -> None:
    """The arguments of `forward` without `self`; those with a default are optional."""
    names = [each.arg for each in (*forward.posonlyargs, *forward.args)]
    optional = names[len(names) - len(forward.defaults) :]
    named = list(zip((each.arg for each in forward.kwonlyargs), forward.kw_defaults))
    contents.arguments = names[1:] + [name for name, _ in named]
    contents.optional = optional + [name for name, default in named if default is not None]

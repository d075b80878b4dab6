# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What the source has of what a fast server would not need: lines of Python for each request, and memos of requests."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Where a request is read, checked and answered.
COUNTED = ("runtime/frontends", "runtime/inference")
# Where something may be remembered of a request: there, and on its way to a model and back.
SEARCHED = (*COUNTED, "runtime/requests", "runtime/instances", "runtime/calls", "runtime/ensembles", "stub", "utils")


def lines_of(folder):
    """(modules, lines) of a folder and those below it."""
    files = sorted((ROOT / folder).rglob("*.py"))
    return len(files), sum(len(file.read_text().splitlines()) for file in files)


def memos(root=ROOT, folders=SEARCHED):
    """`PATH:LINE NAME` of each memo, in order."""
    found = []
    for file in sorted(file for folder in folders for file in (root / folder).rglob("*.py")):
        for line, name in sorted(memos_of(file.read_text())):
            found.append(f"{file.relative_to(root)}:{line} {name}")
    return found


def memos_of(source):
    """(line, name) of each dictionary that is cleared when it is full, and of each cache of a function's results."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If):
            full = names_measured(node.test) & names_cleared(node.body)
            found += [(node.lineno, name) for name in sorted(full)]
        elif isinstance(node, ast.FunctionDef):
            found += [(node.lineno, node.name) for each in node.decorator_list if is_bounded_cache(each)]
    return found


def names_measured(test):
    """What the test takes the length of."""
    return {
        ast.unparse(node.args[0])
        for node in ast.walk(test)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "len" and node.args
    }


def names_cleared(body):
    """What the statements empty."""
    calls = (node.value for node in body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
    return {ast.unparse(call.func.value) for call in calls if is_clear(call.func)}


def is_clear(function):
    return isinstance(function, ast.Attribute) and function.attr == "clear"


def is_bounded_cache(decorator):
    """`lru_cache` with a size. Without one it holds what the process has once, and not what requests bring."""
    if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func).split(".")[-1] != "lru_cache":
        return False
    return not any(ast.unparse(word.value) == "None" for word in decorator.keywords)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pyruntime inspect`: shows what a server would know of a file of a framework."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf import json_format

from pyruntime.runtime.cli.commands.show import print_json, progress, show_table
from pyruntime.runtime.cli.inspection import Inspection, Wanted, inspect
from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.json_types import JsonObject
from pyruntime.utils.dtypes import BY_NUMBER

# Of more operations only the most frequent ones are shown; --json shows all.
OPERATIONS_SHOWN_MAX = 20


def run_inspect(wanted: Wanted, as_json: bool) -> int:
    """Print what is found out. Returns 1 if a server could not complete the configuration. Raises CommandError."""
    with progress(f"{wanted.path} is being read"):
        found = inspect(wanted)
    if as_json:
        print_json(to_json(found))
    else:
        show_table(("Property", "Value"), properties(found))
        rows = list(tensors(found.config))
        if rows:
            print()
            show_table(("Tensor", "Name", "Datatype", "Dims"), rows)
    return int(bool(found.problem))


def to_json(found: Inspection) -> JsonObject:
    """The result for machines. Tensors are as in a configuration."""
    config = json_format.MessageToDict(found.config, preserving_proto_field_name=True)
    document: JsonObject = {
        "file": str(found.path),
        "backend": found.config.backend,
        "platform": found.config.platform,
        "max_batch_size": found.config.max_batch_size,
        "dynamic_batching": found.config.HasField("dynamic_batching"),
        "input": [_plain(each) for each in config.get("input", [])],
        "output": [_plain(each) for each in config.get("output", [])],
        "problem": found.problem,
    }
    if found.contents is not None:
        document |= {
            "operations": dict(found.contents.operations),
            "custom_operations": list(found.contents.custom),
            "files": list(found.contents.companions),
            "arguments": list(found.contents.arguments),
        }
    return document


def properties(found: Inspection) -> Iterator[tuple[str, str]]:
    """The rows of the first table."""
    config, contents = found.config, found.contents
    yield "file", found.path.name
    yield "backend", config.backend
    if not found.problem:
        batch = f"max_batch_size {config.max_batch_size}" if config.max_batch_size else "none"
        yield "batches", batch + (", dynamic_batching" if config.HasField("dynamic_batching") else "")
    if contents is not None:
        if contents.companions:
            yield "other files", ", ".join(contents.companions)
        if contents.operations:
            yield "operations", _operations(contents.operations)
        if contents.custom:
            yield "custom operations", f"{', '.join(contents.custom)}: by a library in model_operations"
        if contents.arguments and found.problem:
            yield "arguments", ", ".join(contents.arguments)
    if found.problem:
        yield "problem", found.problem


def tensors(config: Config) -> Iterator[tuple[str, str, str, str]]:
    """The rows of the second table, without the batch's dimension, as in a configuration."""
    for noun in ("input", "output"):
        for each in getattr(config, noun):
            known = BY_NUMBER.get(each.data_type)
            yield noun, each.name, known.name if known else "", str(list(each.dims))


def _operations(counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{name} {count}" for name, count in ordered[:OPERATIONS_SHOWN_MAX]]
    more = len(ordered) - len(shown)
    return ", ".join(shown) + (f", and {more} more" if more else "")


def _plain(tensor: JsonObject) -> JsonObject:
    """A tensor with numbers for its dims, which protobuf's JSON has as texts."""
    dims = tensor.get("dims", [])
    assert isinstance(dims, list)
    return tensor | {"dims": [int(str(each)) for each in dims]}

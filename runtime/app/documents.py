# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the JSON documents about the server, its models and its repository, for clients and native code. (pure)"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import orjson

from pyruntime.runtime.config.spec import ModelSpec, TensorSpec
from pyruntime.runtime.repository.lifecycle import IndexRow

# The extensions of the protocol that are supported completely, in Triton's order. Clients rely on the listed ones, so
# `cuda_shared_memory` is omitted, which has not run on a GPU yet.
EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


def server_metadata(name: str, version: str) -> bytes:
    """The body of `/v2`."""
    return orjson.dumps({"name": name, "version": version, "extensions": EXTENSIONS})


def model_metadata(spec: ModelSpec, versions: Iterable[int]) -> bytes:
    """The body of `/v2/models/<name>`, with the versions that serve now, in the order given.

    Shapes are those that clients send: with a leading -1 if the model batches.
    """
    return orjson.dumps(
        {
            "name": spec.name,
            "versions": [str(version) for version in versions],
            "platform": spec.platform,
            "inputs": [_tensor(tensor) for tensor in spec.inputs.values()],
            "outputs": [_tensor(tensor) for tensor in spec.outputs.values()],
        }
    )


def repository_index(rows: Iterable[IndexRow]) -> bytes:
    """The body of `/v2/repository/index`, without the empty fields of rows."""
    return orjson.dumps([{key: value for key, value in asdict(row).items() if value} for row in rows])


def _tensor(tensor: TensorSpec) -> dict[str, object]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}

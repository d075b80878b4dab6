# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Answers queries of native code about the server and its models: functions of Triton's C interface, by name. (pure)

A result is a boolean, flags, or the bytes of the document that clients get too.
"""

from __future__ import annotations

from collections.abc import Callable

import orjson

from pyruntime.runtime.app import documents
from pyruntime.runtime.app.state import ServerState
from pyruntime.utils.errors import Code, InferenceError

Result = bool | int | bytes

# TRITONSERVER_ModelBatchFlag and TRITONSERVER_ModelTxnPropertyFlag.
_BATCH_UNKNOWN, _BATCH_FIRST_DIM = 1, 2
_ONE_TO_ONE, _DECOUPLED = 1, 2
_CONFIG_VERSION = 1


def answer_query(state: ServerState, method: str, arguments: tuple[object, ...]) -> Result:
    """The result of a query. Raises InferenceError."""
    query = QUERIES.get(method)
    if query is None:
        raise InferenceError(f"TRITONSERVER_{method} is not supported", Code.UNSUPPORTED)
    return query(state, *arguments)


def _is_live(state: ServerState) -> bool:
    return True


def _is_ready(state: ServerState) -> bool:
    return state.is_ready()


def _model_is_ready(state: ServerState, name: str, version: int) -> bool:
    try:
        return state.table.resolve(name, version).is_ready
    except InferenceError:
        return False


def _batch_properties(state: ServerState, name: str, version: int) -> int:
    spec = state.table.resolve(name, version).spec
    return _BATCH_FIRST_DIM if spec.max_batch_size > 0 else _BATCH_UNKNOWN


def _transaction_properties(state: ServerState, name: str, version: int) -> int:
    return _DECOUPLED if state.table.resolve(name, version).spec.decoupled else _ONE_TO_ONE


def _metadata(state: ServerState) -> bytes:
    return documents.server_metadata(state.settings.server_id, state.version)


def _model_metadata(state: ServerState, name: str, version: int) -> bytes:
    return documents.model_metadata(state.table.resolve(name, version).spec, state.table.ready_versions(name, version))


def _model_config(state: ServerState, name: str, version: int, form: int) -> bytes:
    if form != _CONFIG_VERSION:
        raise InferenceError(
            f"model configuration version {form} not supported, supported versions are: {_CONFIG_VERSION}",
            Code.INVALID_ARG,
        )
    return state.table.resolve(name, version).spec.json


def _statistics(state: ServerState, name: str, version: int) -> bytes:
    return orjson.dumps({"model_stats": state.statistics(name, version)})


def _index(state: ServerState, ready_only: bool) -> bytes:
    return documents.repository_index(state.index(ready_only))


def _metrics(state: ServerState) -> bytes:
    return state.metrics.render()


QUERIES: dict[str, Callable[..., Result]] = {
    "ServerIsLive": _is_live,
    "ServerIsReady": _is_ready,
    "ServerModelIsReady": _model_is_ready,
    "ServerModelBatchProperties": _batch_properties,
    "ServerModelTransactionProperties": _transaction_properties,
    "ServerMetadata": _metadata,
    "ServerModelMetadata": _model_metadata,
    "ServerModelConfig": _model_config,
    "ServerModelStatistics": _statistics,
    "ServerModelIndex": _index,
    "ServerMetrics": _metrics,
}

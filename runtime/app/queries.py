# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What native code asks about the server and its models: functions of Triton's C interface, by name. (pure)

Each answers with a boolean, with flags, or with the bytes of a document, which are those that clients get.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from pyruntime.runtime.app.state import Core
from pyruntime.runtime.frontends.common import status
from pyruntime.utils.errors import Code, InferenceError

Result = bool | int | bytes

# TRITONSERVER_ModelBatchFlag and TRITONSERVER_ModelTxnPropertyFlag.
_BATCH_UNKNOWN, _BATCH_FIRST_DIM = 1, 2
_ONE_TO_ONE, _DECOUPLED = 1, 2
_CONFIG_VERSION = 1


def answer_query(core: Core, method: str, arguments: tuple[Any, ...]) -> Result:
    """The answer. Raises InferenceError."""
    query = QUERIES.get(method)
    if query is None:
        raise InferenceError(f"TRITONSERVER_{method} is not supported", Code.UNSUPPORTED)
    return query(core, *arguments)


def _is_live(core: Core) -> bool:
    return True


def _is_ready(core: Core) -> bool:
    return core.is_ready()


def _model_is_ready(core: Core, name: str, version: int) -> bool:
    try:
        return core.table.resolve(name, version).is_ready
    except InferenceError:
        return False


def _batch_properties(core: Core, name: str, version: int) -> int:
    spec = core.table.resolve(name, version).spec
    return _BATCH_FIRST_DIM if spec.max_batch_size > 0 else _BATCH_UNKNOWN


def _transaction_properties(core: Core, name: str, version: int) -> int:
    return _DECOUPLED if core.table.resolve(name, version).spec.decoupled else _ONE_TO_ONE


def _metadata(core: Core) -> bytes:
    return status.server_metadata(core.settings.server_id, core.version)


def _model_metadata(core: Core, name: str, version: int) -> bytes:
    return status.model_metadata(core.table.resolve(name, version).spec, core.table.ready_versions(name))


def _model_config(core: Core, name: str, version: int, form: int) -> bytes:
    if form != _CONFIG_VERSION:
        raise InferenceError(
            f"model configuration version {form} not supported, supported versions are: {_CONFIG_VERSION}",
            Code.INVALID_ARG,
        )
    return core.table.resolve(name, version).spec.json


def _statistics(core: Core, name: str, version: int) -> bytes:
    return orjson.dumps({"model_stats": core.statistics(name, version)})


def _index(core: Core, ready_only: bool) -> bytes:
    return status.repository_index(core.index(ready_only))


def _metrics(core: Core) -> bytes:
    return core.metrics.render()


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

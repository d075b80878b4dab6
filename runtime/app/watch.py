# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the document that an open page asks for every two seconds: states, counters, instances, and new log lines.

document := {"server": server, "closed": {API: header}, "may": {"load": bool, "internals": bool},
             "models"?: [row], "versions"?: [version], "log"?: [line]}
server   := {"began_ms", "now_ms", "ready", "exiting", "name"?, "version"?, "control"?, "in_flight"?,
             "pending_bytes"?, "pending_bytes_max"?}
row      := a row of the repository index
version  := {"name", "version", "since_ms", "queued", "levels": {level: waiting}, "memory", "success", "failure",
             "inferences", "executions", "last_ms", "hits", "ns": {step: sum}, "quantiles_us": [p50, p99] | null,
             "placement", "instances": [{"name", "state", "restarts", "down", "gpu"?: number}]}
line     := [number, time_ms, level, file, line, message]

Parts of APIs that are closed to the client are left out. Counters only grow, so the page computes rates and keeps their
history: a server without an open page does nothing for it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.execution.executor import state_of
from pyruntime.runtime.inference.model_version import ModelVersion

# The quantiles of latencies over the last minute, where the settings enable summaries. NaN, for none, becomes null.
_RANKS = (0.5, 0.99)


def watch_document(state: ServerState, closed: Mapping[str, str], internals: bool, log_after: int) -> dict[str, object]:
    """The document. `closed` are the APIs that the client may not use, with the header that opens each.

    With `internals`, it has the lines of the log after the number `log_after`.
    """
    document: dict[str, object] = {
        "server": _server(state, closed),
        "closed": closed,
        "may": {
            "load": state.settings.model_control_mode == "explicit" and "model-repository" not in closed,
            "internals": internals,
        },
    }
    if "model-repository" not in closed:
        rows = state.index(ready_only=False)
        document["models"] = [
            {"name": row.name, "version": row.version, "state": row.state, "reason": row.reason} for row in rows
        ]
    if "statistics" not in closed:
        state.settle()
        document["versions"] = [
            _version(model, shows_reasons="model-repository" not in closed)
            for model in (*state.models(), *state.table.down.values())
        ]
    if internals:
        document["log"] = [tuple(line) for line in state.log_tail.after(log_after)]
    return document


def _server(state: ServerState, closed: Mapping[str, str]) -> dict[str, object]:
    server: dict[str, object] = {
        "began_ms": state.began_ms,
        "now_ms": time.time_ns() // 1_000_000,
        "ready": state.is_ready(),
        "exiting": state.exiting,
    }
    if "metadata" not in closed:
        server |= {"name": state.settings.server_id, "version": state.version}
    if "model-repository" not in closed:
        server["control"] = state.settings.model_control_mode
    if "statistics" not in closed:
        pending = state.pending_bytes
        server |= {
            "in_flight": state.in_flight,
            "pending_bytes": pending.used,
            "pending_bytes_max": pending.limit,
        }
    return server


def _version(model: ModelVersion, *, shows_reasons: bool) -> dict[str, object]:
    statistics = model.statistics
    gpus = model.gpus
    return {
        "name": model.spec.name,
        "version": str(model.version),
        "since_ms": model.since_ms,
        "queued": model.pending,
        "levels": {name: level.waiting for name, level in model.scheduler.levels().items()},
        "memory": model.memory.region.used_bytes + sum(each.response_bytes for each in model.instances),
        "success": statistics.success_count,
        "failure": statistics.failure_count,
        "inferences": statistics.inference_count,
        "executions": statistics.execution_count,
        "last_ms": statistics.last_inference_ms,
        "hits": 0 if statistics.cache is None else statistics.cache.hit_count,
        "ns": {
            "total": statistics.success_ns,
            "queue": statistics.queue_ns,
            "input": statistics.compute_input_ns,
            "infer": statistics.compute_infer_ns,
            "output": statistics.compute_output_ns,
        },
        "quantiles_us": None if statistics.latencies is None else statistics.latencies.request.quantiles(_RANKS),
        "placement": model.placement,
        "instances": [
            {
                "name": each.name,
                "state": state_of(each),
                "restarts": each.restarts,
                "down": each.down if shows_reasons else "",
            }
            | ({"gpu": gpus[each.name]} if each.name in gpus else {})
            for each in model.instances
        ],
    }

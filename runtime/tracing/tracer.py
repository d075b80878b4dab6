# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Traces the requests of a server: holds the settings, starts traces, and hands complete ones to the writer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.settings import TRACE_OPENTELEMETRY, TraceSettings, without_credentials
from pyruntime.runtime.tracing.buckets import Buckets, Write
from pyruntime.runtime.tracing.sampling import GLOBAL, Layers, Values
from pyruntime.runtime.tracing.trace import TREE_TRACES_MAX, SpanIds, Trace, Tree
from pyruntime.runtime.tracing.traceparent import Parent, format_traceparent, parse_traceparent
from pyruntime.runtime.tracing.values import OFF, read_count, read_levels, read_log_frequency, read_rate
from pyruntime.runtime.tracing.writer import TraceWriter
from pyruntime.utils.errors import Code, InferenceError

# The most traces that wait for the disk, and the longest time that they wait, in seconds: waking the writer's thread
# for each trace would cost more than everything else.
FILE_QUEUE_MAX = 20_000
FILE_BATCH_MAX = 1_000
FILE_DELAY_S = 0.1

# The settings by the names that clients use, with the field of Values and the function that parses the text.
_FIELDS: dict[str, tuple[str, Callable[[str], int]]] = {
    "trace_rate": ("rate", read_rate),
    "trace_count": ("count", read_count),
    "log_frequency": ("log_frequency", read_log_frequency),
}

Setting = str | Sequence[str] | None


class TracedModel(Protocol):
    """The properties of a model that a trace contains."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def version(self) -> int: ...


class Tracer:
    """See the module. `active`: a request may be traced. All methods belong to the event loop's thread.

    `is_served` says whether there is a model of this name, and `on_change` is called when settings have changed.
    """

    def __init__(
        self,
        settings: TraceSettings,
        version: str,
        is_served: Callable[[str], bool],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._is_served = is_served
        self._layers = Layers(Values(settings.levels, settings.rate, settings.count, settings.log_frequency))
        self._is_opentelemetry = settings.mode == TRACE_OPENTELEMETRY
        self._writer = _make_writer(settings, version)
        self._buckets = Buckets()
        self._last_id = 0
        # The traces that are not complete, by the context that their models pass to the calls they make.
        self._open: dict[str, Trace] = {}
        self.active = False
        self._on_change = on_change
        self._review()

    def __repr__(self) -> str:
        return f"<Tracer {self._settings.mode} [{len(self._open)} under way]>"

    # Settings.

    def settings(self, model: str = "") -> dict[str, str | list[str]]:
        """The settings for a model, or those of the server if `model` is "".

        Raises InferenceError INVALID_ARG for a model that does not serve.
        """
        self._check_served(model)
        sampler = self._layers.sampler(model)
        settings = self._settings
        shown: dict[str, str | list[str]] = {
            "trace_level": list(sampler.values.levels) or [OFF],
            "trace_rate": str(sampler.values.rate),
            "trace_count": str(sampler.left),
        }
        if not self._is_opentelemetry:
            file = {"log_frequency": str(sampler.values.log_frequency), "trace_file": settings.file}
            return shown | file | {"trace_mode": settings.mode}
        shown |= {"trace_mode": settings.mode, "url": without_credentials(settings.url)[0]}
        if settings.resource:
            shown["resource"] = [f"{name}={value}" for name, value in settings.resource]
        return shown | {
            "bsp_max_queue_size": str(settings.queue_max),
            "bsp_schedule_delay": str(settings.schedule_delay_ms),
            "bsp_max_export_batch_size": str(settings.export_batch_max),
        }

    def update(self, model: str, values: Mapping[str, Setting]) -> None:
        """Change the settings of a model, or of the server if `model` is "". None, or an empty list, clears a value.

        Ignores unknown names, as in Triton. Raises InferenceError with Triton's message, and then changes nothing.
        """
        self._check_served(model)
        if "trace_file" in values:
            raise InferenceError("trace file location can not be updated through network protocol", Code.UNSUPPORTED)
        changes = _read_changes(values)
        if not changes:
            return
        before = [(sampler, sampler.values) for sampler in self._layers.samplers()]
        self._layers.change(model or GLOBAL, changes)
        now = self._layers.samplers()
        for sampler, old in before:
            if sampler.values != old or sampler not in now:
                self._write(self._buckets.flush(sampler, old.log_frequency > 0))
        self._review()

    def _check_served(self, model: str) -> None:
        if model and not self._is_served(model):
            raise InferenceError(f"Request for unknown model : {model}", Code.INVALID_ARG)

    def _review(self) -> None:
        self.active = self._writer is not None and any(sampler.is_on for sampler in self._layers.samplers())
        self._on_change()

    # Requests.

    def sample(self, model: TracedModel, request_id: str, traceparent: str) -> Trace | None:
        """Begin the trace of a client's request, if it is sampled.

        With OpenTelemetry, a request that its client traces is always sampled, independent of the rate and the count.
        """
        if self._writer is None:
            return None
        sampler = self._layers.sampler(model.spec.name)
        parent = parse_traceparent(traceparent) if traceparent and self._is_opentelemetry else None
        is_forced = parent is not None and parent.sampled
        if not (sampler.force() if is_forced else sampler.pick()):
            return None
        if not sampler.left:
            self._review()
        # Spans take their times from the notes, so OpenTelemetry needs timestamps in any case.
        tree = Tree(sampler, sampler.timestamps or self._is_opentelemetry, sampler.tensors)
        return self._begin(tree, 0, model, request_id, self._new_spans(parent, is_call=False))

    def call(self, model: TracedModel, request_id: str, context: str) -> Trace | None:
        """Begin the trace of a call to a model, if `context` is that of a request whose trace is open."""
        caller = self._open.get(context)
        if caller is None or caller.tree.begun >= TREE_TRACES_MAX:
            return None
        spans = None
        if caller.spans is not None:
            spans = self._new_spans(Parent(caller.spans.trace, caller.spans.model, True), is_call=True)
        return self._begin(caller.tree, caller.id, model, request_id, spans)

    def close(self) -> None:
        """Write all complete traces. Blocks, so it must not run on the event loop while that serves requests."""
        if self._writer is not None:
            for write in self._buckets.flush_all():
                self._writer.put(write)
            self._writer.close()

    def _begin(self, tree: Tree, parent_id: int, model: TracedModel, request_id: str, spans: SpanIds | None) -> Trace:
        self._last_id = id = self._last_id + 1
        context = str(id)
        if spans is not None:
            context = f'{{"traceparent":"{format_traceparent(spans.trace, spans.model)}"}}'
        name = (model.spec.name, model.version)
        trace = Trace(tree, id, parent_id, name, request_id, context, spans, time.monotonic_ns, self._ended)
        self._open[context] = trace
        return trace

    def _new_spans(self, parent: Parent | None, is_call: bool) -> SpanIds | None:
        if not self._is_opentelemetry:
            return None
        trace_id, parent_id = (parent.trace_id, parent.span_id) if parent is not None else (_new_id(16), "")
        return SpanIds(trace_id, parent_id, "" if is_call else _new_id(8), _new_id(8), _new_id(8))

    def _ended(self, trace: Trace) -> None:
        del self._open[trace.context]
        tree = trace.tree
        tree.traces.append(trace)
        tree.under_way -= 1
        if tree.under_way:
            return
        tree.sampler.under_way -= 1
        self._write(Write(tree.traces, apart=False) if self._is_opentelemetry else self._buckets.add(tree))

    def _write(self, write: Write | None) -> None:
        if write is not None and self._writer is not None:
            self._writer.put(write)


def _new_id(size: int) -> str:
    return os.urandom(size).hex()


def _make_writer(settings: TraceSettings, version: str) -> TraceWriter | None:
    """The writer for the mode of the settings, None if they name no destination."""
    if settings.mode == TRACE_OPENTELEMETRY:
        from pyruntime.runtime.tracing.collector import Collector  # it imports what most servers do not need

        collector = Collector(settings.url, settings.resource, version)
        return TraceWriter(collector, settings.schedule_delay_ms / 1000, settings.export_batch_max, settings.queue_max)
    if not settings.file:
        return None
    from pyruntime.runtime.tracing.trace_file import TraceFile

    return TraceWriter(TraceFile(settings.file), FILE_DELAY_S, FILE_BATCH_MAX, FILE_QUEUE_MAX)


def _read_changes(values: Mapping[str, Setting]) -> dict[str, Any]:
    """The fields of Values that change, with None for those that are cleared. Raises InferenceError."""
    changes: dict[str, Any] = {}
    try:
        if "trace_level" in values:
            levels = values["trace_level"]
            texts = [levels] if isinstance(levels, str) else levels
            changes["levels"] = read_levels(texts) if texts else None
        for name, (field, read) in _FIELDS.items():
            if name in values:
                text = _only(name, values[name])
                changes[field] = None if text is None else read(text)
    except ValueError as exc:
        raise InferenceError(str(exc), Code.INVALID_ARG) from exc
    return changes


def _only(name: str, value: Setting) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if len(value) > 1:
        raise ValueError(f"expect only 1 value for '{name}'")
    return value[0] if value else None

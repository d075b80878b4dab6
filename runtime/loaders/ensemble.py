# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads a version of an ensemble, whose steps are loaded already: see repository/ensembles.py.

There is no process to start. The folder of the version may be empty.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from pyruntime.runtime.config.ensemble_steps import inherited_labels
from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.ensembles.ensemble import Ensemble
from pyruntime.runtime.ensembles.executor import EnsembleExecutor
from pyruntime.runtime.ensembles.gpu_places import ensemble_places
from pyruntime.runtime.ensembles.graph import Graph
from pyruntime.runtime.ensembles.request import WaitingStart
from pyruntime.runtime.ensembles.step_call import TimedTracer
from pyruntime.runtime.inference.model_version import Exchange, ModelVersion
from pyruntime.runtime.instances.model_server import ModelServer
from pyruntime.runtime.loaders.version_loader import (
    LoadedVersion,
    VersionFactory,
    final_config,
    final_spec,
    nothing_to_configure,
)
from pyruntime.runtime.loaders.warmup import warm_up_of
from pyruntime.runtime.repository.backends import Backend
from pyruntime.runtime.repository.draft import Draft
from pyruntime.utils.errors import InferenceError, LoadError

_LOG = logging.getLogger("pyruntime.repository")


class EnsembleLoader:
    """See the module, and VersionLoader. `find` returns the version that serves, and raises InferenceError."""

    def __init__(self, find: Callable[[str, int], ModelVersion], server: ModelServer, factory: VersionFactory) -> None:
        self._find = find
        self._server = server
        self._tracer = TimedTracer(server)
        self._factory = factory

    async def load(
        self, draft: Draft, version: int, backend: Backend, completed: asyncio.Future[Config], undo: AsyncExitStack
    ) -> LoadedVersion:
        """See VersionLoader. Safe to cancel."""
        if not completed.done() and version == draft.newest:
            completed.set_result(final_config(draft.config, backend))
        spec = final_spec(draft, await asyncio.shield(completed))
        assert spec.ensemble is not None  # `backend` says so
        try:
            models = [self._find(step.model_name, step.model_version) for step in spec.ensemble.steps]
        except InferenceError as exc:  # it was unloaded a moment ago
            raise LoadError(f"ensemble '{spec.name}' lacks a model: {exc.message}", exc.code) from exc
        if spec.ensemble.max_inflight_requests:
            limit = spec.ensemble.max_inflight_requests
            _LOG.info("Ensemble model '%s' configured with max_inflight_requests: %d", spec.name, limit)
        specs = [each.spec for each in models]
        memory = self._factory.memory(draft)
        undo.callback(memory.close)
        model = self._factory.version(inherited_labels(spec, specs), version, memory)
        graph = Graph(model.spec, specs)
        # When other versions than these serve, the ensemble is loaded again.
        model.leave_on_gpus(lambda: ensemble_places(graph.plan(None), {i: m.on_gpus for i, m in enumerate(models)}))
        ensemble: Ensemble[WaitingStart] = Ensemble(
            model.spec,
            version,
            graph,
            memory,
            model.statistics,
            self._find,
            self._tracer,
            self._server.peers,
        )
        executor = EnsembleExecutor(ensemble, model.scheduler)
        warm_up = warm_up_of(model, draft.folder.path)
        if warm_up is not None:
            undo.callback(executor.kill)
            await warm_up(executor, executor.inflight, 1)
        return model, [executor]

    def regrouped(self, draft: Draft, model: ModelVersion, config: Config) -> Config:
        """See VersionLoader. An ensemble has no instance groups."""
        return config

    async def regroup(
        self, draft: Draft, model: ModelVersion, backend: Backend, config: Config, undo: AsyncExitStack
    ) -> Exchange:
        """See VersionLoader."""
        return Exchange(model, model.spec, model.instances, (), nothing_to_configure)

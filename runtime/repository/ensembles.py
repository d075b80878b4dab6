# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Prepares the load of an ensemble, once the models of its steps are loaded: compares it with them. (pure)"""

from __future__ import annotations

from dataclasses import replace

from pyruntime.runtime.config.build import model_spec
from pyruntime.runtime.config.ensemble_steps import check_steps
from pyruntime.runtime.config.ensembles import EnsembleError
from pyruntime.runtime.config.spec import ModelSpec, StepSpec
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.repository.lifecycle import LATEST, LifecycleTable
from pyruntime.runtime.repository.request import Found
from pyruntime.utils.errors import Code, InferenceError, LoadError


class StepsError(LoadError):
    """An ensemble cannot be loaded because of the models of its steps."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Code.INVALID_ARG)


def prepare(found: Found, table: LifecycleTable[ModelVersion], changes: tuple[int, ...]) -> Found:
    """The same ensemble, as it is to be loaded now. `changes` is a value that changes with its models.

    Raises StepsError if it lacks a model, or does not fit together with them.
    """
    config = found.draft.config
    spec = model_spec(config)
    assert spec.ensemble is not None  # the caller looks
    models = _models(spec.name, spec.ensemble.steps, table)
    completed = type(config)()
    completed.CopyFrom(config)
    try:
        completed.model_transaction_policy.decoupled = check_steps(spec, models)
    except EnsembleError as exc:
        raise StepsError(str(exc if found.source is None else found.source.located(exc))) from exc
    fingerprints = {
        version: replace(found, own=b"%s %r" % (found.own, changes)) for version, found in found.fingerprints.items()
    }
    return replace(found, draft=replace(found.draft, config=completed), fingerprints=fingerprints)


def _models(ensemble: str, steps: tuple[StepSpec, ...], table: LifecycleTable[ModelVersion]) -> list[ModelSpec]:
    """The models of the steps. Of a model with several versions it is the newest one, whatever a step names."""
    known = {row.name for row in table.index() if row.state}
    unknown = dict.fromkeys(step.model_name for step in steps if step.model_name not in known)
    if unknown:
        raise StepsError(
            f"ensemble {ensemble} contains models that are not available or ambiguous: {', '.join(unknown)}"
        )
    models = []
    for step in steps:
        name, version = step.model_name, step.model_version
        try:
            latest = table.resolve(name, LATEST)
        except InferenceError as exc:
            raise StepsError(_why_missing(ensemble, name, table)) from exc
        if version != LATEST and version not in table.ready_versions(name):
            raise StepsError(
                f"ensemble '{ensemble}' depends on '{name}' whose required version {version} is not loaded."
            )
        models.append(latest.spec)
    return models


def _why_missing(ensemble: str, name: str, table: LifecycleTable[ModelVersion]) -> str:
    rows = [row for row in table.index() if row.name == name]
    whole = "".join(row.reason for row in rows if not row.version)
    if whole:
        return (
            f"ensemble '{ensemble}' depends on '{name}' which is not valid. Model '{name}' failed with error: {whole}"
        )
    reasons = "".join(f"version {row.version} is at {row.state} state: {row.reason};" for row in rows)
    because = f" Model '{name}' loading failed with error: {reasons}" if reasons else ""
    return f"ensemble '{ensemble}' depends on '{name}' which has no loaded version.{because}"

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the state of every version of every model, and the object that serves it. (pure)

The table neither loads nor unloads. Its callers report each step, and it resolves the names in requests. `H` is the
type of the objects that serve versions; the table does not use their contents.

A version that is loaded again while it serves is RELOADING: the old object serves, as READY, until the new load
succeeds, and remains if the new load fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, NoReturn, TypeVar

from pyruntime.utils.errors import Code, InferenceError, LocalError

H = TypeVar("H")

# The reason of a version that was unloaded on request, which does not make the server unready.
UNLOADED_REASON = "unloaded"
# "Any version" in a request.
LATEST = -1


class State(Enum):
    """The state of one version. Versions without an entry in the table are UNKNOWN."""

    UNKNOWN = auto()
    LOADING = auto()
    READY = auto()
    RELOADING = auto()
    UNLOADING = auto()
    UNAVAILABLE = auto()


class Step(Enum):
    """A reported step of a version."""

    BEGIN_LOAD = auto()
    READY = auto()
    FAIL = auto()
    BEGIN_UNLOAD = auto()
    UNLOADED = auto()
    RECOVER = auto()


# The legal steps; all others raise an error.
NEXT = {
    (State.UNKNOWN, Step.BEGIN_LOAD): State.LOADING,
    (State.UNAVAILABLE, Step.BEGIN_LOAD): State.LOADING,
    (State.READY, Step.BEGIN_LOAD): State.RELOADING,
    (State.LOADING, Step.READY): State.READY,
    (State.RELOADING, Step.READY): State.READY,
    (State.LOADING, Step.FAIL): State.UNAVAILABLE,
    (State.RELOADING, Step.FAIL): State.READY,
    # All its instances are down; one of them is ready again.
    (State.READY, Step.FAIL): State.UNAVAILABLE,
    (State.UNAVAILABLE, Step.RECOVER): State.READY,
    (State.READY, Step.BEGIN_UNLOAD): State.UNLOADING,
    # By unloading a failed version an operator says that it is not wanted.
    (State.UNAVAILABLE, Step.BEGIN_UNLOAD): State.UNLOADING,
    (State.UNLOADING, Step.UNLOADED): State.UNAVAILABLE,
}

# The folders of an absolute path.
_FOLDERS = re.compile(r"""(?<![\w./])/(?:[^/\s'"]+/)*(?=[^/\s'"])""")
# Where clients and operators find all of a reason.
_READ_MORE = "the repository index and the server's log have more"

# Versions in these states serve requests, so the repository index calls both READY.
_SERVING = (State.READY, State.RELOADING)


@dataclass(frozen=True, slots=True)
class IndexRow:
    """One row of the repository index. All fields but the name are empty for a model that was never loaded."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


def _first_line(reason: str) -> str:
    """What clients read of a reason: its first line, with files but without the folders of this host."""
    return _FOLDERS.sub("", reason.strip().partition("\n")[0])


@dataclass(slots=True)
class _Entry(Generic[H]):
    state: State
    reason: str = ""
    handle: H | None = None


class LifecycleTable(Generic[H]):
    """All known models, their versions and states, and the objects that serve them.

    The methods that report a step raise LocalError, and change nothing, if NEXT lacks the step. `on_change` is called
    whenever another object serves a version from then on.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._models: dict[str, dict[int, _Entry[H]]] = {}
        self._repository: frozenset[str] = frozenset()
        self._problems: dict[str, str] = {}
        # Read for every request: only (model, version) and (model, LATEST) of versions that serve.
        self.serving: dict[tuple[str, int], H] = {}
        # The objects of versions whose instances are all down. Their owner keeps them here until they serve or end.
        self.down: dict[tuple[str, int], H] = {}
        self._on_change = on_change

    def resolve(self, model: str, version: int = LATEST) -> H:
        """The object that serves a version; for LATEST, that of the highest ready version.

        Raises InferenceError: NOT_FOUND for an unknown model or version, and for a model that failed to load, with the
        reason; UNAVAILABLE for a version that is not ready, and for a model whose instances are down.
        """
        handle = self.serving.get((model, version))
        if handle is None:
            self._refuse(model, version)
        return handle

    def begin_load(self, model: str, version: int) -> None:
        """A version is being loaded, for the first time or again. If it serves, it continues to do so."""
        self._step(model, version, Step.BEGIN_LOAD)

    def ready(self, model: str, version: int, handle: H) -> H | None:
        """A load succeeded: `handle` serves from now on. Returns the previous handle, which the caller must drain."""
        entry = self._step(model, version, Step.READY)
        return self._replace_handle(model, version, entry, handle)

    def fail(self, model: str, version: int, reason: str) -> H | None:
        """A load failed, or all instances of a ready version are down. Returns the handle that serves no more, or None.

        A version that was being loaded again stays ready with its old handle.
        """
        entry = self._step(model, version, Step.FAIL, reason)
        return None if entry.state in _SERVING else self._replace_handle(model, version, entry, None)

    def recover(self, model: str, version: int, handle: H) -> None:
        """An instance of a version that had failed is ready again."""
        self._replace_handle(model, version, self._step(model, version, Step.RECOVER), handle)

    def begin_unload(self, model: str, version: int) -> H | None:
        """A version accepts no more requests. Returns the handle to drain."""
        entry = self._step(model, version, Step.BEGIN_UNLOAD)
        return self._replace_handle(model, version, entry, None)

    def unloaded(self, model: str, version: int) -> None:
        """The handle that begin_unload returned is drained and has ended."""
        self._step(model, version, Step.UNLOADED, UNLOADED_REASON)

    def set_repository(self, names: Iterable[str]) -> None:
        """Set the names of the models in the repositories. Loaded models stay, even if they are not among them."""
        self._repository = frozenset(names)

    def fail_model(self, model: str, reason: str) -> None:
        """The load of a model failed: no version serves, or those that do serve as they were loaded before.

        Holds until one of its versions takes a step.
        """
        self._problems[model] = reason

    def dismiss(self, model: str) -> None:
        """Forget why a model could not be loaded, because it was loaded, unloaded, or left the repositories."""
        self._problems.pop(model, None)

    def states(self, model: str) -> dict[int, State]:
        """The state of every version for which a load was ever begun; empty for unknown models."""
        return {version: entry.state for version, entry in self._models.get(model, {}).items()}

    def ready_versions(self, model: str, only: int = LATEST) -> tuple[int, ...]:
        """The versions that serve, ascending; if `only` is a version, none but that one."""
        ready = sorted(version for version, state in self.states(model).items() if state in _SERVING)
        return tuple(ready) if only == LATEST else tuple(version for version in ready if version == only)

    def index(self) -> list[IndexRow]:
        """The repository index, in order of name and version."""
        rows: list[IndexRow] = []
        for name in sorted(self._repository.union(self._models, self._problems)):
            problem = self._problem(name)
            if problem is not None:
                rows.append(IndexRow(name, state=State.UNAVAILABLE.name, reason=problem))
            elif name not in self._models:
                rows.append(IndexRow(name))
            for version, entry in sorted(self._models.get(name, {}).items()):
                if entry.state in _SERVING:
                    rows.append(IndexRow(name, str(version), State.READY.name, self._why_older(name)))
                else:
                    rows.append(IndexRow(name, str(version), entry.state.name, entry.reason))
        return rows

    def is_ready(self, strict: bool) -> bool:
        """Whether the server is ready as far as its models are concerned.

        If `strict`, every version must serve, except those that were unloaded; otherwise no model needs to.
        """
        if not strict:
            return True
        if any(self._problem(name) is not None for name in self._problems):
            return False
        entries = (entry for versions in self._models.values() for entry in versions.values())
        return all(entry.state in _SERVING or entry.reason == UNLOADED_REASON for entry in entries)

    def __repr__(self) -> str:
        versions = sum(len(entries) for entries in self._models.values())
        serving = sum(version != LATEST for _, version in self.serving)
        return f"<LifecycleTable [{versions} versions, {serving} ready]>"

    def _step(self, model: str, version: int, step: Step, reason: str = "") -> _Entry[H]:
        entry = self._models.get(model, {}).get(version) or _Entry(State.UNKNOWN)
        new = NEXT.get((entry.state, step))
        if new is None:
            raise LocalError(
                f"{step.name} is not legal while version {version} of model '{model}' is {entry.state.name}"
            )
        entry.state = new
        entry.reason = "" if new in _SERVING else reason
        self._models.setdefault(model, {})[version] = entry
        self._problems.pop(model, None)
        return entry

    def _replace_handle(self, model: str, version: int, entry: _Entry[H], handle: H | None) -> H | None:
        old, entry.handle = entry.handle, handle
        for key in (version, LATEST):
            self.serving.pop((model, key), None)
        if handle is not None:
            self.serving[model, version] = handle
        ready = self.ready_versions(model)
        if ready:
            self.serving[model, LATEST] = self.serving[model, ready[-1]]
        self._on_change()
        return old

    def _problem(self, model: str) -> str | None:
        """Why no version of a model could be loaded; None if some version serves."""
        return None if (model, LATEST) in self.serving else self._problems.get(model)

    def _why_older(self, model: str) -> str:
        """Why the versions that serve are not those of the latest load; "" if they are."""
        problem = self._problems.get(model)
        return "" if problem is None else f"an older configuration serves, because the latest failed to load: {problem}"

    def _refuse(self, model: str, version: int) -> NoReturn:
        unknown = f"Request for unknown model: '{model}'"
        versions = self._models.get(model, {})
        down = [each for each in versions if (model, each) in self.down and version in (LATEST, each)]
        if down:
            # It is known, and serves again when an instance is ready, so clients do well to try again.
            reason = _first_line(versions[max(down)].reason) or "its instances are down"
            raise InferenceError(f"Model '{model}' version {max(down)} is not available: {reason}", Code.UNAVAILABLE)
        why = self._why_not_loaded(model, version)
        if not versions:
            raise InferenceError(f"{unknown} is not found{why}", Code.NOT_FOUND)
        if version == LATEST:
            raise InferenceError(f"{unknown} has no available versions{why}", Code.NOT_FOUND)
        if version not in versions:
            raise InferenceError(f"{unknown} version {version} is not found", Code.NOT_FOUND)
        raise InferenceError(f"{unknown} version {version} is not at ready state{why}", Code.UNAVAILABLE)

    def _why_not_loaded(self, model: str, version: int) -> str:
        """The end of a sentence about a version, LATEST for any, that failed to load; "" if none has."""
        failed = [
            (number, entry.reason)
            for number, entry in self._models.get(model, {}).items()
            if entry.state is State.UNAVAILABLE and entry.reason != UNLOADED_REASON and version in (LATEST, number)
        ]
        reason = max(failed)[1] if failed else self._problems.get(model, "")
        return f", because it failed to load: {_first_line(reason)} ({_READ_MORE})" if reason else ""

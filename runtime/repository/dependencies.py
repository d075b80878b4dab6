# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Knows which ensembles depend on which models, and which models were asked for by name. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Dependencies:
    """Ensembles by name, with the models of their steps.

    An ensemble stays here while one of its models is missing: it is loaded again with that model. `explicit` are the
    models that were loaded by name, and not only for an ensemble.
    """

    def __init__(self) -> None:
        self.explicit: set[str] = set()
        self._steps: dict[str, tuple[str, ...]] = {}
        # How often other versions of a model began to serve.
        self._changes: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Dependencies [{len(self._steps)} ensembles]>"

    def add(self, ensemble: str, steps: Iterable[str]) -> None:
        """Set the models that an ensemble depends on."""
        self._steps[ensemble] = tuple(dict.fromkeys(steps))

    def forget(self, name: str) -> None:
        """A model is no ensemble, or nobody wants it any longer."""
        self._steps.pop(name, None)

    def steps(self, ensemble: str) -> tuple[str, ...]:
        """The models that an ensemble depends on; none for other models."""
        return self._steps.get(ensemble, ())

    def above(self, model: str) -> list[str]:
        """The ensembles that a model is a step of."""
        return [ensemble for ensemble, steps in self._steps.items() if model in steps]

    def changed(self, model: str) -> None:
        """Other versions of a model serve from now on."""
        self._changes[model] = self._changes.get(model, 0) + 1

    def changes(self, ensemble: str) -> tuple[int, ...]:
        """A value that changes when any of an ensemble's models does."""
        return tuple(self._changes.get(model, 0) for model in self.steps(ensemble))

    def cycle(self, ensemble: str) -> str:
        """The cycle that an ensemble is part of, in Triton's words; "" if there is none."""
        seen: set[str] = set()
        queue = [ensemble]
        while queue:
            model = queue.pop()
            for step in self.steps(model):
                if step == ensemble:
                    return f"circular dependency between ensembles: {ensemble} -> ... -> {model} -> {ensemble}"
                if step not in seen:
                    seen.add(step)
                    queue.append(step)
        return ""

    def unneeded(self, ensemble: str, is_serving: Callable[[str], bool]) -> list[str]:
        """The models of an unloaded ensemble that nobody else wants, and of the ensembles among these, and so on."""
        unneeded: dict[str, None] = {}
        queue = [ensemble]
        while queue:
            for step in self.steps(queue.pop()):
                users = [each for each in self.above(step) if each != ensemble and each not in unneeded]
                if step not in self.explicit and not any(map(is_serving, users)):
                    unneeded[step] = None
                    queue.append(step)
        return list(unneeded)

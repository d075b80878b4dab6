# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Isolates the imports of several models in one process.

In a stub a model has the interpreter for itself: its module is `1.model`, its folders are on sys.path, and sys.argv has
no options. Here each model has modules of its own. They are in sys.modules, its folders on sys.path, and sys.argv as in
a stub, only while the model is *active*: while it is loaded, executes something, or is finalized. So two models may
both have a `1.model` and a `helper.py`, and closing a model leaves nothing of it. Installed packages are shared, and
stay.

Several models are active if one calls another. The last activated one has priority, and the caller again after the
call. Two limits remain: models that run at the same time and import own modules with equal names, and a thread that a
model leaves running, which cannot import the model's own modules between two requests.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType


class OwnModules:
    """The own modules of one model: those in `folders`, or in other folders that the model adds to sys.path."""

    def __init__(self, folders: Sequence[str]) -> None:
        """`folders` are the model's entries of sys.path."""
        self.path = list(folders)
        self.modules: dict[str, ModuleType] = {}
        # The names of top-level modules and packages in the folders.
        self.names = {
            entry.stem
            for folder in folders
            for entry in Path(folder).iterdir()
            if entry.suffix == ".py" or entry.is_dir()
        }
        self._homes = list(folders)
        self._users = 0
        self._is_retired = False

    def enter(self) -> None:
        """Activate once more. Thread-safe."""
        with _interpreter.lock:
            if not self._is_retired:
                self._users += 1
                _interpreter.activate(self)

    def leave(self) -> None:
        """Undo one `enter`."""
        with _interpreter.lock:
            if not self._is_retired:
                self._users -= 1
                if not self._users:
                    _interpreter.deactivate(self)

    def come_first(self) -> None:
        """Get priority over other active models."""
        with _interpreter.lock:
            if self._users and not self._is_retired:
                _interpreter.activate(self)

    def retire(self) -> None:
        """Deactivate forever, even if a thread that the model left running calls `enter`."""
        with _interpreter.lock:
            self._is_retired = True
            if self._users:
                _interpreter.deactivate(self)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Active inside."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def owns(self, module: ModuleType) -> bool:
        """Whether a module is this model's own."""
        places = _places(module)
        # A process can load a compiled module only once.
        if any(place.endswith(tuple(EXTENSION_SUFFIXES)) for place in places):
            return False
        return any(_is_in(place, folder) for place in places for folder in self._homes)

    def add_path(self, entries: Sequence[str]) -> None:
        """The model has put these on sys.path."""
        self.path += entries
        self._homes += [entry for entry in entries if not _is_everybodys(entry)]

    def may_have(self, name: str) -> bool:
        """Whether a module of this name may be one of the model's own."""
        return name in self.modules or name.partition(".")[0] in self.names

    def has_globals(self, namespace: object) -> bool:
        """Whether these are the globals of one of the model's own modules."""
        return any(module.__dict__ is namespace for module in list(self.modules.values()))


class _Interpreter:
    """Switches sys.path and sys.modules between models.

    A switch never removes anything, even for a moment, that the model with priority after it needs, because that model
    may import something at the same time. Other threads may import as well, so sys.modules is copied before it is
    iterated: a copy is one step of the interpreter, whereas each pair of a list of its items may run the garbage
    collector, and with it another thread.
    """

    def __init__(self) -> None:
        # Reentrant, because a model's destructors may run anywhere.
        self.lock = threading.RLock()
        self._active: list[OwnModules] = []
        # sys.path without the models; and with them, as it was made.
        self._path: list[str] = []
        # sys.argv without the models.
        self._argv: list[str] = []
        self._made_path: list[str] = []
        # The names in sys.modules after the latest change.
        self._names: set[str] = set()
        # Modules that are not in sys.modules because a model has one with the same name.
        self._hidden: dict[str, ModuleType] = {}

    def activate(self, own: OwnModules) -> None:
        """Add a model, with priority."""
        if not self._active or self._active[-1] is not own:
            self._change([*(each for each in self._active if each is not own), own])

    def deactivate(self, own: OwnModules) -> None:
        """Remove a model."""
        self._change([each for each in self._active if each is not own])

    def _change(self, active: list[OwnModules]) -> None:
        """Make these the active ones, the last of them first."""
        if self._active:
            self._collect()
        else:
            self._path = list(sys.path)
            self._argv = list(sys.argv)
        before, self._active = self._active, active
        self._hide({id(module) for own in before for module in own.modules.values()})
        wanted: dict[str, ModuleType] = {}
        for own in active:
            wanted = {name: module for name, module in wanted.items() if not own.may_have(name)} | own.modules
        sys.modules.update(wanted)
        for own in before:
            for name, module in own.modules.items():
                if name not in wanted and sys.modules.get(name) is module:
                    del sys.modules[name]
        for name in [name for name in self._hidden if not any(own.may_have(name) for own in active)]:
            sys.modules[name] = self._hidden.pop(name)
        self._set_arguments()
        self._names = set(sys.modules)

    def _collect(self) -> None:
        """Assign modules and entries of sys.path that were added since the latest change to the active model."""
        self._active[-1].add_path([entry for entry in sys.path if entry not in self._made_path])
        for name, module in sys.modules.copy().items():
            if name in self._names:
                continue
            owner = next((own for own in reversed(self._active) if own.owns(module)), None)
            if owner is not None:
                owner.modules[name] = module

    def _hide(self, ours: set[int]) -> None:
        """Remove modules of others that an import of a model's own module would find instead."""
        for name, module in sys.modules.copy().items():
            if id(module) in ours or not any(own.may_have(name) for own in self._active):
                continue
            top = sys.modules.get(name.partition(".")[0], module)
            if any(name in own.modules for own in self._active) or not _is_installed(top):
                self._hidden[name] = module
                sys.modules.pop(name, None)

    def _set_arguments(self) -> None:
        """Set sys.path and sys.argv.

        As in a stub, installed packages come before a model's folders. Folders of tests come after them.
        """
        folders = [folder for own in reversed(self._active) for folder in own.path]
        installed = [entry for entry in self._path if _is_everybodys(entry)]
        self._made_path = list(dict.fromkeys([*installed, *folders, *self._path])) if self._active else self._path
        sys.path[:] = self._made_path
        sys.argv[:] = [""] if self._active else self._argv


_interpreter = _Interpreter()
_INSTALLED = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *site.getsitepackages(),
    site.getusersitepackages(),
)


def _is_everybodys(entry: str) -> bool:
    """Whether a server in this environment has this entry of sys.path, too."""
    if entry.endswith(".zip") or any(_is_in(entry, folder) for folder in _INSTALLED):
        return True
    return entry != "" and entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)


def _is_installed(module: ModuleType) -> bool:
    """Whether a module is from the standard library or an installed package."""
    found = [place for place in _places(module) if place]
    return not found or any(_is_in(place, folder) for place in found for folder in _INSTALLED)


def _places(module: ModuleType) -> list[str]:
    """The file and the folders of a module, "" for none."""
    # Without __getattr__: modules such as torch.classes have attributes of any name, which are no paths.
    attributes = vars(module)
    return [attributes.get("__file__") or "", *attributes.get("__path__", ())]


def _is_in(place: str, folder: str) -> bool:
    return place == folder or place.startswith(os.path.join(folder, ""))

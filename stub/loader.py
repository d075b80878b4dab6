# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds, imports and checks the TritonPythonModel of a model or of a Python-based backend.

The rules of sys.path and of module names are Triton's: a model's module is `<version>.<file stem>`, with the version's
folder and the model's folder appended to sys.path; a backend's module is `model`, with its folder appended. What is
installed for the server alone is not found before the modules in those folders.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import traceback
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, Dict, Iterable, List, Optional

from pyruntime.stub.logs import LOGGER
from pyruntime.utils.errors import LoadError
from pyruntime.utils.paths import authors_path

# The most frames of the model's code in an error message. More frames, as in deep recursion, do not help.
FRAMES_MAX = 20
# Packages that are installed for the server and that models need not know of. They do not take the place of modules
# beside model.py.
OURS = frozenset(
    ("httptools", "msgpack", "orjson", "posix_ipc", "rich", "setproctitle", "shellingham", "typer", "uvloop", "yaml")
)
# The most characters of an error message.
MESSAGE_CHARS_MAX = 64 << 10


def load_class(location: Dict[str, str]) -> Any:
    """Import the model at `location` and return its TritonPythonModel class.

    `location` has `model_dir`, `version` and `file`, the path of model.py; a backend's has `backend_dir` too, and finds
    `location` as an attribute of its class if the class declares it (`location: ClassVar[dict[str, str]]`).
    Raises LoadError if the file, the class or `execute` is missing, and any exception of the import itself.
    """
    file = location["file"]
    if not os.path.isfile(file):
        raise LoadError(f"Python model file not found in '{file}'")
    stem = os.path.splitext(os.path.basename(file))[0]
    backend_dir = location.get("backend_dir")
    if backend_dir:
        folders = [backend_dir]
        name = stem
    else:
        folders = [os.path.join(location["model_dir"], location["version"]), location["model_dir"]]
        name = f"{location['version']}.{stem}"
    sys.path.extend(folders)
    _prefer_modules_in(folders)
    module = _import_from_source(name)
    model_class = getattr(module, "TritonPythonModel", None)
    if model_class is None:
        raise LoadError(f"Python model {authors_path(file)} does not define a class TritonPythonModel")
    if not callable(getattr(model_class, "execute", None)):
        raise LoadError(f"Python model {authors_path(file)} does not implement `execute` method.")
    if backend_dir and "location" in getattr(model_class, "__annotations__", {}):
        model_class.location = location
    return model_class


class _OwnModules:
    """Finds modules in the folders of a model that have the name of one of OURS."""

    def __init__(self, folders: List[str]) -> None:
        self._folders = folders

    def find_spec(self, name: str, path: Any, target: Any = None) -> Optional[ModuleSpec]:
        """See importlib.abc.MetaPathFinder."""
        spec = PathFinder.find_spec(name, self._folders) if name in OURS else None
        return spec if spec is not None and spec.loader is not None else None  # a folder without code is no module


def _prefer_modules_in(folders: List[str]) -> None:
    """Let the model import its own modules, also where they have the names of OURS, which this process may have loaded.

    Our code keeps what it has imported.
    """
    finder = _OwnModules(folders)
    sys.meta_path.insert(0, finder)
    own = {name for name in OURS if finder.find_spec(name, None) is not None}
    # Processes that the model starts have its sys.path, and not its finder.
    places = [place for place, entry in enumerate(sys.path) if any(PathFinder.find_spec(name, [entry]) for name in own)]
    if places and sys.path[places[0]] not in folders:
        sys.path[places[0] : places[0]] = folders
    for each in [each for each in sys.modules if each.partition(".")[0] in own]:
        del sys.modules[each]


class _FromSource(SourceFileLoader):
    """Neither reads nor writes byte code, whose age is known to the second: a model may be changed twice in one."""

    def get_code(self, fullname: str) -> CodeType:
        """Compile the file."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def _import_from_source(name: str) -> ModuleType:
    """Import a module as `import` does, and compile it if it is a file of Python code."""
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        return importlib.import_module(name)
    spec.loader = loader = _FromSource(name, spec.loader.path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    return module


def log_failure(what: str, exc: BaseException, root: str) -> None:
    """Log an exception with its traceback, as a record of the last line that ran in the folder `root`, the model's."""
    frames = traceback.extract_tb(exc.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(os.path.join(root, ""))]
    path, line = (own[-1].filename, own[-1].lineno or 0) if own else (__file__, 0)
    if isinstance(exc, SyntaxError) and exc.filename:  # the line that cannot be compiled has no frame
        path, line = exc.filename, exc.lineno or 0
    arguments = (what, trace(exc))
    LOGGER.handle(LOGGER.makeRecord(LOGGER.name, logging.ERROR, path, line, "%s\n%s", arguments, None))


def trace(exc: BaseException) -> str:
    """The traceback of an exception for the log, as text that can be encoded.

    It has the frames of the model and of libraries: those of pyruntime and of importlib explain nothing to the model's
    author. An exception without any other has them all.
    """
    shown = traceback.TracebackException(type(exc), exc, exc.__traceback__)
    if _models_own(shown.stack) or isinstance(exc, SyntaxError):
        _cut(shown)
    _name_files(shown)
    return "".join(shown.format()).encode("utf-8", "backslashreplace").decode()


def _cut(shown: traceback.TracebackException) -> None:
    """Remove frames that are not the model's, also from the exceptions that led to this one."""
    at: Optional[traceback.TracebackException] = shown
    while at is not None:
        at.stack[:] = _models_own(at.stack)
        at = at.__cause__ or at.__context__


def _name_files(shown: traceback.TracebackException) -> None:
    """Give the files the paths by which the model's author knows them."""
    at: Optional[traceback.TracebackException] = shown
    while at is not None:
        for frame in at.stack:
            frame.filename = authors_path(frame.filename)
        if isinstance(getattr(at, "filename", None), str):  # of a syntax error
            at.filename = authors_path(at.filename)
        at = at.__cause__ or at.__context__


def is_own(filename: str) -> bool:
    """Whether a frame in this file may be the model's or a library's: not pyruntime's, nor of the import system."""
    return not filename.startswith(_NOT_THE_MODELS)


def _models_own(frames: Iterable[traceback.FrameSummary]) -> List[traceback.FrameSummary]:
    return [frame for frame in frames if is_own(frame.filename)]


def describe(exc: BaseException, root: str) -> str:
    """An exception as Triton shows it to clients: `<type>: <message>`, then the model's frames, innermost first.

    Paths are relative to `root`, the model's folder. Files outside it have only their name, so that clients learn
    nothing about the server's disk.
    """
    root = root.rstrip(os.sep)
    frames: List[str] = []
    for frame in reversed(_models_own(traceback.extract_tb(exc.__traceback__))):
        inside = frame.filename.startswith(root + os.sep)
        path = os.path.relpath(frame.filename, root) if inside else os.path.basename(frame.filename)
        frames.append(f"  {path}({frame.lineno}): {frame.name}\n")
    at = "\n\nAt:\n" + "".join(frames[:FRAMES_MAX]) if frames else ""
    try:
        text = str(exc)
    except BaseException as worse:
        text = f"(its text cannot be had: {type(worse).__name__})"
    return f"{type(exc).__name__}: {text[:MESSAGE_CHARS_MAX]}{at}"


# Our own frames: the folder of all packages of pyruntime, which run in a stub or in a test of a model.
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_NOT_THE_MODELS = (
    *(os.path.join(_OURS, part, "") for part in ("stub", "utils", "testing", "runtime")),
    os.path.dirname(os.path.abspath(importlib.__file__)) + os.sep,
    # Where an event loop of ours runs a coroutine of the model.
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(importlib.__file__))), "asyncio", "base_events.py"),
    "<frozen ",
)

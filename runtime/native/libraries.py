# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads the dependencies of a native backend's library, so that the loader then finds all that it needs.

Triton's image has all libraries on the loader's search path. Here the server is a Python extension, and frameworks are
wheels. So this module reads the dependencies of a library, and loads those first that the loader would not find:

- `libtritonserver.so` under the name that a repaired wheel gave it: a shim, see shim.py;
- libraries of frameworks: from their Python packages, see frameworks.py;
- libcrypto: Triton itself loads it, so libraries built for Triton use it without naming it;
- libraries that the model's configuration names.

It refuses libraries that cannot work, with an explanation, before any of their code runs.
"""

from __future__ import annotations

import platform
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pyruntime.runtime.native.elf import ElfError, SharedObject, Symbols
from pyruntime.runtime.native.frameworks import (
    Framework,
    find_library,
    folders_of,
    framework_of_library,
    framework_of_symbol,
)
from pyruntime.runtime.native.linker import (
    SERVER,
    is_loaded,
    mapped_files,
    missing_symbols,
    open_library,
    read_library,
)
from pyruntime.runtime.native.shim import make_shim
from pyruntime.utils.errors import Code, LoadError
from pyruntime.utils.private_libraries import LoadedLibraries

EXECUTE = "TRITONBACKEND_ModelInstanceExecute"

_ANY_SERVER = re.compile(r"libtritonserver(-[0-9a-f]+)?\.so(\.\d+)*")
_PYTHON_BACKEND = "libtriton_python.so"
_CRYPTO = "libcrypto.so.3"
_CRYPTO_SYMBOL = re.compile(r"(EVP|OPENSSL|CRYPTO|SHA\d+|HMAC)_")
_SERVER_SYMBOL = re.compile(r"TRITON(SERVER|BACKEND|REPOAGENT|CACHE)_")
# The most names in an error message.
_NAMES_SHOWN_MAX = 3

_UNABLE = "unable to load shared library: "
_NOT_FOUND = re.compile(r"([^\s:]+): cannot open shared object file: No such file or directory")
_UNDEFINED = re.compile(r"undefined symbol: ([^\s,]+)")
_VERSION = re.compile(r"version `([^']+)' not found")
_TLS = "cannot allocate memory in static TLS block"


def prepare(path: str, *, model: str, preload: Sequence[str] = (), entry_point: str = EXECUTE) -> None:
    """Load the dependencies of the library at `path`, `preload` first. Raises LoadError if it cannot be used.

    `entry_point` is the function that the library must export. Our own `libtritonserver.so` must be loaded already.
    Blocks: call it in a thread.
    """
    shared, symbols = _read(path, model)
    _refuse(path, model, shared, symbols)
    if entry_point not in symbols.exported:
        raise LoadError(
            f"unable to find required entrypoint '{entry_point}' in shared library: {path}: undefined symbol:"
            f" {entry_point}",
            Code.NOT_FOUND,
        )
    _refuse_other_server(path, model)
    for library in preload:
        _preload(library, model)
    try:
        _provide(path, shared, symbols)
    except OSError as error:
        raise LoadError(explain(str(error), path, model), Code.NOT_FOUND) from error


def libraries_of(path: str, preload: Sequence[str] = ()) -> LoadedLibraries:
    """Those that are loaded from now on for a backend: itself, what lies in its folder, and what it names as a file."""
    return LoadedLibraries([str(Path(path).parent), *(each for each in preload if Path(each).is_file())])


def provide(path: str) -> None:
    """Load the dependencies of a library that does not call the server. Raises OSError if one cannot be loaded.

    Blocks. Ignores a library that it cannot read: the loader will report it.
    """
    with suppress(ElfError):
        _provide(path, *read_library(path))


def explain_missing(dlerror: str, path: str) -> str:
    """The advice about a dependency of `path` that the loader did not find, "" if its error is another one."""
    found = _NOT_FOUND.search(dlerror)
    return _explain_library(found[1], path) if found else ""


def explain(dlerror: str, path: str, model: str) -> str:
    """The loader's error for `path`, with advice on how to resolve it."""
    dlerror = dlerror.removeprefix(_UNABLE)  # the message has it already
    advice = ""
    if _NOT_FOUND.search(dlerror):
        advice = explain_missing(dlerror, path)
    elif found := _UNDEFINED.search(dlerror):
        advice = _explain_symbol(found[1])
    elif found := _VERSION.search(dlerror):
        advice = f"it is built for a newer system, that has {found[1]}"
    elif _TLS in dlerror:
        advice = "start pyruntime with the library that is named in LD_PRELOAD, then there is room for it"
    return f"{_UNABLE}{dlerror}; model '{model}' needs it" + (f": {advice}" if advice else "")


def _read(path: str, model: str) -> tuple[SharedObject, Symbols]:
    try:
        return read_library(path)
    except OSError as error:
        raise LoadError(
            f"unable to load shared library of model '{model}': {path}: {error.strerror}", Code.NOT_FOUND
        ) from error
    except ElfError as error:
        raise LoadError(f"unable to load shared library of model '{model}': {path} {error}", Code.NOT_FOUND) from error


def _refuse(path: str, model: str, shared: SharedObject, symbols: Symbols) -> None:
    """Raise LoadError if the library itself can never run here."""
    what = f"unable to load shared library of model '{model}': {path}"
    if shared.machine != platform.machine():
        raise LoadError(
            f"{what} is built for {shared.machine}, and this machine is {platform.machine()}", Code.NOT_FOUND
        )
    if _PYTHON_BACKEND in (shared.soname, Path(path).name):
        raise LoadError(
            f"{what} is Triton's own Python backend. Models in Python are run by pyruntime itself: set"
            " 'backend: \"python\"' and no 'runtime' in their config.pbtxt"
        )
    if not is_loaded(SERVER):
        raise LoadError(f"{what} needs pyruntime's own {SERVER}, which is not loaded")
    wanted = frozenset(filter(_SERVER_SYMBOL.match, symbols.undefined))
    if missing := missing_symbols(SERVER, wanted):
        names = ", ".join(missing[:_NAMES_SHOWN_MAX]) + (", ..." if len(missing) > _NAMES_SHOWN_MAX else "")
        raise LoadError(
            f"{what} is built for another version of Triton: it needs {names}, which pyruntime has not", Code.NOT_FOUND
        )


def _refuse_other_server(path: str, model: str) -> None:
    """Raise LoadError if the process contains Triton's own server: the first loaded library gets all calls."""
    for mapped in mapped_files():
        if _ANY_SERVER.fullmatch(Path(mapped).name):
            raise LoadError(
                f"unable to load shared library of model '{model}': {path} would call {mapped}, which is in this"
                " process already, instead of pyruntime. Uninstall, or do not import, what brings it along"
            )


def _preload(library: str, model: str) -> None:
    """Load one of the libraries that a model's configuration names."""
    try:
        # A bare name is searched by the loader, so there is no file to read here.
        if Path(library).is_file():
            _provide(library, *read_library(library))
        open_library(library, is_global=True)
    except (OSError, ElfError) as error:
        reason = f"{library} {error}" if isinstance(error, ElfError) else str(error)
        raise LoadError(
            f"unable to preload library '{library}' for model '{model}': {reason}", Code.NOT_FOUND
        ) from error


def _provide(path: str, shared: SharedObject, symbols: Symbols) -> None:
    """Load dependencies that the loader would not find. Ignores those not found here: the loader will report them."""
    for name in shared.needed:
        if is_loaded(name):
            continue
        if _ANY_SERVER.fullmatch(name):
            _load_shim(name, shared.machine)
        elif framework_of_library(name) and not _is_beside(name, path, shared):
            _load_framework(name)
    is_said = any(name.startswith("libcrypto") for name in shared.needed)
    if not is_said and any(map(_CRYPTO_SYMBOL.match, symbols.undefined)):
        _try_open(_CRYPTO, is_global=True)


def _load_shim(soname: str, machine: str) -> None:
    with tempfile.TemporaryDirectory(prefix="pyruntime-") as folder:
        path = Path(folder, "shim.so")
        path.write_bytes(make_shim(soname, SERVER, machine))
        open_library(str(path))


def _is_beside(name: str, path: str, shared: SharedObject) -> bool:
    """Whether a library is in the search path of the library that needs it."""
    origin = str(Path(path).absolute().parent)
    folders = shared.runpath or shared.rpath
    places = (folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for folder in folders)
    return any(Path(place, name).is_file() for place in places)


def _load_framework(name: str) -> None:
    """Load a framework's library: the one that the loader finds, because a user installed it there, else a package's.

    Its symbols stay local, because frameworks contain different versions of the same symbols.
    """
    if not _try_open(name) and (found := find_library(name)):
        open_library(str(found))


def _try_open(name: str, *, is_global: bool = False) -> bool:
    try:
        open_library(name, is_global=is_global)
    except OSError:
        return False
    return True


def _explain_library(name: str, path: str) -> str:
    if name == path:
        return ""
    framework = framework_of_library(name)
    if framework is None:
        return f"install the package of the system that has {name}, or put it into a folder of LD_LIBRARY_PATH"
    if others := _others(name, framework):
        return f"{framework.distribution} is installed, but has {others}: install the version that has {name}"
    return f"pip install {framework.distribution} brings it, in the version that has {name}"


def _others(name: str, framework: Framework) -> str:
    """The files of other versions of the same library in a framework's package."""
    stem = name.partition(".so")[0]
    files = (path.name for folder in folders_of(framework) for path in sorted(folder.glob(f"{stem}.so*")))
    return next(files, "")


def _explain_symbol(symbol: str) -> str:
    if _SERVER_SYMBOL.match(symbol):
        return f"it is built for another version of Triton, that has {symbol}"
    if _CRYPTO_SYMBOL.match(symbol):
        return f"{symbol} is one of OpenSSL's: install the package of the system that has {_CRYPTO}"
    if framework := framework_of_symbol(symbol):
        return f"{symbol} is one of {framework.distribution}'s: install the version that the library is built for"
    return f"no library that it needs has {symbol}: name one that has it in the parameter PRELOAD_LIBRARIES"

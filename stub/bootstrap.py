# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Starts a stub under an interpreter that does not have pyruntime: `<python> <here>/bootstrap.py JSON`.

JSON is an object with the arguments of `run` in main.py (sockets and descriptors as inherited numbers), and `msgpack`,
the folder of the host's copy of that package. Of the host's packages this process imports only that one,
`pyruntime.stub` and `pyruntime.utils`, each by its path: their parent folders are never on sys.path.

Code outside functions runs under any Python 3, so that it can report that the version is too old.
"""

import ctypes
import importlib
import importlib.util
import json
import os
import socket
import sys
import types
from typing import Callable

OLDEST = (3, 8)
# The oldest msgpack that supports the types in our frames.
MSGPACK_OLDEST = (1, 0)
# The same title as in Triton, because users search for it in process lists.
TITLE = "triton_python_backend_stub"

if sys.version_info < OLDEST:
    sys.exit("models run under Python %d.%d or newer, and this is %s" % (*OLDEST, sys.version.split()[0]))


def main() -> None:
    """Import the stub's code, and run the stub that the command line describes."""
    here = os.path.dirname(os.path.abspath(__file__))
    arguments = json.loads(sys.argv[1])
    _tidy(here)
    _set_title("%s %s" % (TITLE, arguments["name"]))
    run = _import_ours(os.path.dirname(here), arguments.pop("msgpack"))
    for name in ("output_fd", "requests_fd", "responses_fd"):
        os.set_inheritable(arguments[name], False)
    for name in ("sock", "grants"):
        os.set_inheritable(arguments[name], False)
        arguments[name] = socket.socket(fileno=arguments[name])
    run(**arguments)


def _tidy(here: str) -> None:
    """Hide this program from the model."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    sys.argv[:] = [""]  # as in Triton
    # Processes that a model starts by `multiprocessing` would import this file as __main__.
    sys.modules["__main__"] = types.ModuleType("__main__")


def _import_ours(root: str, msgpack: str) -> Callable[..., None]:
    """Import `run` from the stub's code in the folder `root`, with msgpack from the environment, or else the host's.

    The host's msgpack falls back to its Python code if its compiled code is for another interpreter. The model does not
    see it: its environment decides whether the model can import msgpack, and which version.
    """
    _import_by_path("pyruntime", os.path.join(root, "stub", "importable", "pyruntime.py"), root)
    has_own = _has_msgpack()
    if not has_own:
        _forget("msgpack")
        _import_by_path("msgpack", os.path.join(msgpack, "__init__.py"), msgpack)
    run = importlib.import_module("pyruntime.stub.main").run  # type: Callable[..., None]
    if not has_own:
        _forget("msgpack")
    return run


def _has_msgpack() -> bool:
    try:
        import msgpack

        return bool(msgpack.version >= MSGPACK_OLDEST)
    except (ImportError, AttributeError):
        return False


def _forget(name: str) -> None:
    """Remove a package from sys.modules, so that the next import loads it again."""
    for each in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[each]


def _import_by_path(name: str, path: str, folder: str) -> None:
    """Import the file at `path` as a package whose modules are in `folder`."""
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[folder])
    assert spec is not None  # it is a file of Python code
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _set_title(title: str) -> None:
    """Overwrite this process's command line, which process lists show, with a title.

    setproctitle does the same, but the environment may lack it. The command line is always longer than the title,
    because it contains the name in the title and two paths.
    """
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, see proc(5)
    if start:  # 0 if the kernel hides it
        size = end - start
        ctypes.memmove(start, title.encode("utf-8", "surrogateescape")[: size - 1].ljust(size, b"\0"), size)


if __name__ == "__main__":
    main()

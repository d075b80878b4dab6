# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Starts a stub under an interpreter in which nothing of ours is installed: `<python> <here>/bootstrap.py JSON`.

JSON is an object with the arguments of `run` in main.py, sockets and descriptors as inherited numbers, and `msgpack`,
the folder of the host's copy of that package. Of the host's packages this process sees that one, `pyruntime.stub` and
`pyruntime.utils`, each by its path: the folders that they lie in are never on sys.path.

What is not in a function runs under any Python 3, to say that it is too old.
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
# The oldest msgpack that reads and writes what our frames are made of.
MSGPACK_OLDEST = (1, 0)
# In the list of processes a stub has the name that people look for.
TITLE = "triton_python_backend_stub"

if sys.version_info < OLDEST:
    sys.exit("models run under Python %d.%d or newer, and this is %s" % (*OLDEST, sys.version.split()[0]))


def main() -> None:
    """Make the stub's code importable, and be the stub that the command line describes."""
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
    """Look to the model like a program of its own, and not like this one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    sys.argv[:] = [TITLE]
    # What a model starts by `multiprocessing` would import this file again.
    sys.modules["__main__"] = types.ModuleType("__main__")


def _import_ours(root: str, msgpack: str) -> Callable[..., None]:
    """What runs a stub, imported from the folder `root`; and msgpack from the environment, or else from the host's.

    The host's falls back to its Python code where its compiled code is for another interpreter. The model does not see
    it: whether there is a msgpack to import, and which, is a matter of its environment.
    """
    package = types.ModuleType("pyruntime")
    package.__path__ = [root]
    sys.modules["pyruntime"] = package
    has_own = _has_msgpack()
    if not has_own:
        _forget("msgpack")
        _import_by_path("msgpack", msgpack)
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
    """Have a package be imported anew by whoever imports it next."""
    for each in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[each]


def _import_by_path(name: str, folder: str) -> None:
    """Import the package in `folder`."""
    path = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[folder])
    assert spec is not None  # it is a file of Python code
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _set_title(title: str) -> None:
    """Write a title over this process's command line, which is what lists of processes show.

    setproctitle does no more, but the environment need not have it. The command line is longer than any title, for it
    holds that title's name between two paths.
    """
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, see proc(5)
    if start:  # 0 where the kernel does not tell
        size = end - start
        ctypes.memmove(start, title.encode("utf-8", "surrogateescape")[: size - 1].ljust(size, b"\0"), size)


if __name__ == "__main__":
    main()

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The environment of a stub's process is the host's, as if the model's environment had been activated in it."""

from pyruntime.runtime.environments.environment import Environment, Place

INHERITED = {
    "PATH": "/usr/bin:/bin",
    "LD_LIBRARY_PATH": "/opt/cuda/lib",
    "HOME": "/home/me",
    "VIRTUAL_ENV": "/host/.venv",
    "CONDA_PREFIX": "/host/conda",
    "CONDA_DEFAULT_ENV": "base",
    "PYTHONHOME": "/host/python",
    "PYTHONPATH": "/host/packages",
}
KEPT = {"HOME": "/home/me"}


def test_virtual_environment():
    """It comes first on PATH, and nothing is left of the environment that the server was started in."""
    place = Place("/env/bin/python", "/env", is_virtual=True)
    assert place.variables(INHERITED) == KEPT | {
        "PATH": "/env/bin:/usr/bin:/bin",
        "LD_LIBRARY_PATH": "/opt/cuda/lib",
        "VIRTUAL_ENV": "/env",
    }


def test_conda_environment():
    """Its libraries come first as well: its packages are built for its own libstdc++, and not for the system's."""
    place = Place("/env/bin/python", "/env")
    assert place.variables(INHERITED) == KEPT | {
        "PATH": "/env/bin:/usr/bin:/bin",
        "LD_LIBRARY_PATH": "/env/lib:/opt/cuda/lib",
        "CONDA_PREFIX": "/env",
    }


def test_no_empty_parts():
    """An empty part of PATH or LD_LIBRARY_PATH would be the current folder."""
    variables = Place("/env/bin/python", "/env").variables({})
    assert variables == {"PATH": "/env/bin", "LD_LIBRARY_PATH": "/env/lib", "CONDA_PREFIX": "/env"}


def test_installed_python():
    """A Python of the system only has its folder on PATH, where it may be already."""
    ours = KEPT | {"LD_LIBRARY_PATH": "/opt/cuda/lib"}
    assert Place("/usr/bin/python3.9").variables(INHERITED) == ours | {"PATH": "/usr/bin:/bin"}
    assert Place("/opt/py/bin/python").variables(INHERITED) == ours | {"PATH": "/opt/py/bin:/usr/bin:/bin"}


def test_repr_keeps_secrets():
    """The repr omits the variables: they may contain passwords, and an Environment may be logged."""
    assert "hunter2" not in repr(Environment("/env/bin/python", "Python 3.9.1", {"PASSWORD": "hunter2"}))

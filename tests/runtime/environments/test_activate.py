# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The activation scripts of conda packages have the same effect in a stub as in a shell."""

import asyncio

import pytest

from pyruntime.runtime.environments.activate import activated
from pyruntime.utils.errors import LoadError

BEFORE = {"PATH": "/usr/bin:/bin", "GONE": "soon", "CONDA_PREFIX": "/env"}


def scripts(root, **texts):
    """An environment with these scripts, by their names."""
    folder = root / "etc" / "conda" / "activate.d"
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / f"{name}.sh").write_text(text)
    return str(root)


def test_no_scripts(tmp_path):
    """Without scripts nothing is run, and nothing changes."""
    assert asyncio.run(activated(str(tmp_path), BEFORE)) is BEFORE


@pytest.mark.processes
def test_scripts(tmp_path):
    """They see what those before them set, may print, and may set anything to anything."""
    root = scripts(
        tmp_path / "env [1]",
        a='export A="$CONDA_PREFIX/share"; unset GONE; echo hello; echo hello >&2',
        b='export B="$A\ntwo = lines" PATH="/more:$PATH"; NOT_EXPORTED=1',
    )
    assert asyncio.run(activated(root, BEFORE)) == {
        "PATH": "/more:/usr/bin:/bin",
        "CONDA_PREFIX": "/env",
        "A": "/env/share",
        "B": "/env/share\ntwo = lines",
    }


@pytest.mark.processes
def test_failing_script(tmp_path):
    """A script that fails is an error, with its output."""
    root = scripts(tmp_path / "env", a="echo no licence found; exit 4")
    with pytest.raises(LoadError, match=r"(?s)activating '.*env' failed: .*exited with code 4.*no licence found"):
        asyncio.run(activated(root, BEFORE))

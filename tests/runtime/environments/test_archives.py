# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Archives are unpacked once for each content."""

import asyncio
import os
import shutil
import sys

import pytest

from pyruntime.runtime.environments import archives
from pyruntime.runtime.environments.archives import unpack_archive
from pyruntime.utils.errors import LoadError

pytestmark = pytest.mark.processes

# The contents of a conda-pack archive: a Python, and a script that it must run after unpacking.
FILES = {
    "bin/python": f'#!/bin/sh\nexec "{sys.executable}" "$@"\n',
    "bin/conda-unpack": "import os, sys\nwith open('prefix', 'a') as file:\n"
    "    print(sys.argv[0], os.environ['CONDA_PREFIX'], os.getcwd(), file=file)\n",
}


async def accept(folder):
    """Any folder is an environment."""


def unpack(root, path, check=accept):
    return asyncio.run(unpack_archive(str(root), str(path), check))


def test_unpacked_and_fixed_once(root, tmp_path, pack):
    """conda-unpack is run by the environment's own Python, in the place where the environment stays."""
    archive = pack(tmp_path / "env.tar.gz", FILES)
    folder = unpack(root, archive)
    assert folder.startswith(f"{root}/archive-")
    with open(f"{folder}/prefix") as file:
        assert file.read() == f"{folder}/bin/conda-unpack {folder} {folder}\n"


def test_not_even_read_again(root, tmp_path, pack, monkeypatch):
    """An archive that was not touched is not read again, only looked at."""
    archive = pack(tmp_path / "env.tar.gz", {"bin/python": ""})
    folder = unpack(root, archive)
    monkeypatch.setattr(archives.asyncio, "to_thread", None)
    monkeypatch.setattr(archives, "run", None)
    assert unpack(root, archive) == folder


def test_same_content(root, tmp_path, pack):
    """Two copies of an archive are one environment; a new archive under an old name is a new one."""
    archive = pack(tmp_path / "env.tar.gz", {"bin/python": "one"})
    folder = unpack(root, archive)
    assert unpack(root, shutil.copy(archive, tmp_path / "copy.tar.gz")) == folder
    pack(tmp_path / "env.tar.gz", {"bin/python": "two"})
    with open(f"{unpack(root, archive)}/bin/python") as file:
        assert file.read() == "two"
    assert unpack(root, tmp_path / "copy.tar.gz") == folder


def test_no_environment(root, tmp_path, pack):
    """What is unpacked and no environment for a model is removed, and looked at again the next time."""
    archive = pack(tmp_path / "env.tar.gz", {"bin/python": "", "lib/large": "x"})
    seen = []

    async def refuse(folder):
        seen.append(os.listdir(folder))
        raise LoadError("it has no numpy")

    for _ in range(2):
        with pytest.raises(LoadError, match=r"^it has no numpy$"):
            unpack(root, archive, refuse)
    assert [sorted(names) for names in seen] == [["bin", "lib"]] * 2
    assert not [path for path in root.iterdir() if path.is_dir()]
    assert unpack(root, archive).startswith(f"{root}/archive-")


def test_damaged_memory(root, tmp_path, pack):
    """A truncated record of an archive is ignored."""
    archive = pack(tmp_path / "env.tar.gz", {"bin/python": ""})
    folder = unpack(root, archive)
    (memory,) = root.glob("read-*")
    memory.write_text("abc")
    assert unpack(root, archive) == folder


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"../bin/python": ""}, "unpacking '.*env.tar.gz' failed: .*its member '../bin/python' would be outside"),
        ({**FILES, "bin/conda-unpack": "raise SystemExit('no prefix')"}, "conda-unpack of .*failed: .*no prefix"),
    ],
)
def test_failure_leaves_nothing(root, tmp_path, pack, files, message):
    """An archive that cannot be unpacked is an error with the reason, and leaves no files behind."""
    archive = pack(tmp_path / "env.tar.gz", files)
    for _ in range(2):
        with pytest.raises(LoadError, match=f"(?s){message}"):
            unpack(root, archive)
    assert [name for name in os.listdir(root) if not name.endswith(".lock") and not name.startswith("read-")] == []
    assert sorted(os.listdir(tmp_path)) == ["cache", "env.tar.gz"]


def test_cannot_be_read(root, tmp_path):
    """An archive that has just gone."""
    with pytest.raises(LoadError, match=r"gone\.tar\.gz' cannot be read: No such file or directory"):
        unpack(root, tmp_path / "gone.tar.gz")

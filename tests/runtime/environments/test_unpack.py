# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Archives are unpacked as they were packed; hostile ones write nothing where they should not."""

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyruntime.runtime.environments.members import Members
from pyruntime.runtime.environments.unpack import unpack
from pyruntime.utils.errors import LoadError


def pack(path, *members, mode="w"):
    """Write an archive of (name, type, link target or contents, mode)."""
    with tarfile.open(path, mode) as tar:
        for name, kind, text, permissions in members:
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.mtime = kind, permissions, 1_600_000_000
            if kind == tarfile.REGTYPE:
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text.encode()))
            else:
                info.linkname = text
                tar.addfile(info)
    return str(path)


def file(name, text="text", mode=0o644):
    return name, tarfile.REGTYPE, text, mode


def link(name, target):
    return name, tarfile.SYMTYPE, target, 0o777


def test_round_trip(tmp_path):
    """Contents, links, times, and whether a file can be executed."""
    archive = pack(
        tmp_path / "env.tar",
        ("lib", tarfile.DIRTYPE, "", 0o000),
        file("lib/module.py", "x = 1\n", 0o400),
        file("bin/python", "#!/bin/sh\n", 0o6777),
        link("bin/python3", "python"),
        ("bin/again", tarfile.LNKTYPE, "./bin/python", 0o755),
    )
    folder = tmp_path / "env"
    unpack(archive, str(folder), Members())
    assert (folder / "lib/module.py").read_text() == "x = 1\n"
    assert (folder / "lib/module.py").stat().st_mtime == 1_600_000_000
    assert os.readlink(folder / "bin/python3") == "python"
    assert (folder / "bin/again").samefile(folder / "bin/python")
    modes = {name: (folder / name).stat().st_mode & 0o7700 for name in ("lib", "lib/module.py", "bin/python")}
    assert modes == {"lib": 0o700, "lib/module.py": 0o600, "bin/python": 0o700}


@pytest.mark.processes
def test_deep_names(tmp_path):
    """An archive with a name of very many folders is refused with a sentence."""
    archive = pack(tmp_path / "env.tar", file("a"), file("b/" * 2000 + "c"))
    done = subprocess.run(
        [sys.executable, "-m", "pyruntime.runtime.environments.unpack", archive, str(tmp_path / "env")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "is in 2000 folders in each other" in done.stdout
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.parametrize("compression", ["", "gz", "bz2", "xz"])
def test_compressions(tmp_path, compression):
    """All formats of conda-pack and tar are read, for any name of the archive."""
    archive = pack(tmp_path / "env.tar.gz", file("a", "b"), mode=f"w:{compression}")
    unpack(archive, str(tmp_path / "env"), Members())
    assert (tmp_path / "env/a").read_text() == "b"


@pytest.mark.parametrize(
    "members",
    [
        [file("../outside")],
        [file("/{here}/outside")],
        [link("a", ".."), file("a/outside")],
        [link("a", "/{here}"), file("a/outside")],
        [link("a", "../outside"), file("a")],
        [link("a/b/top", "../.."), link("c", "a/b/top/../outside")],
        [link("a/top", ".."), link("a/top/b", "../outside")],
        [("a", tarfile.LNKTYPE, "../secret", 0o644)],
        [("a", tarfile.LNKTYPE, "/{here}/secret", 0o644)],
        [("a", tarfile.CHRTYPE, "", 0o666)],
        [("a", tarfile.FIFOTYPE, "", 0o666)],
    ],
)
def test_hostile(tmp_path, members):
    """An archive that wants to leave its folder is refused, and has written nothing outside."""
    (tmp_path / "secret").write_text("secret")
    here = str(tmp_path).lstrip("/")
    members = [(name.format(here=here), kind, text.format(here=here), mode) for name, kind, text, mode in members]
    archive = pack(tmp_path / "env.tar", *members)
    with pytest.raises(LoadError, match="its member"):
        unpack(archive, str(tmp_path / "env"), Members())
    assert sorted(os.listdir(tmp_path)) == ["env", "env.tar", "secret"]
    assert (tmp_path / "secret").stat().st_nlink == 1


def paths(*parts):
    return st.lists(st.sampled_from(parts), min_size=1, max_size=4).map("/".join)


NAMES = st.one_of(paths("a", "b"), paths("a", "b", "..", ".", ""))
TARGETS = st.one_of(NAMES, paths("a", "b", ".."), paths(".."))
MEMBERS = st.lists(
    st.one_of(
        NAMES.map(file),
        st.tuples(NAMES, st.just(tarfile.DIRTYPE), st.just(""), st.just(0o755)),
        st.tuples(NAMES, st.just(tarfile.SYMTYPE), TARGETS, st.just(0o777)),
        st.tuples(NAMES, st.just(tarfile.LNKTYPE), NAMES, st.just(0o644)),
    ),
    max_size=6,
)


def write_through(path):
    """Write to a file, or into a folder, through any links."""
    with suppress(OSError), open(path, "a"):
        pass
    with suppress(OSError), open(path / "written", "a"):
        pass


@settings(max_examples=3 * settings.default.max_examples)
@given(MEMBERS)
def test_nothing_leaves(members):
    """For all combinations of names and links, the files and link targets of an archive stay within its folder."""
    with tempfile.TemporaryDirectory() as name:
        # So deep that no path with `..` here leads to the top.
        parents = [Path(name).resolve()]
        for _ in range(6):
            parents.append(parents[-1] / "parent")
            parents[-1].mkdir()
        archive = pack(Path(name) / "env.tar", *members)
        folder = parents[-1] / "env"
        with suppress(LoadError, OSError):  # it goes as far as it comes
            unpack(archive, str(folder), Members())
        for parent, folders, files in list(os.walk(folder)):
            for entry in (*folders, *files):
                write_through(Path(parent, entry))
        assert sorted(os.listdir(parents[0])) == ["env.tar", "parent"]
        assert [os.listdir(parent) for parent in parents[1:]] == [["parent"]] * 5 + [["env"]]


def cut(data):
    return data[: len(data) // 2]


@pytest.mark.processes
@pytest.mark.parametrize("spoil", [cut, lambda data: b"no archive" * 200, lambda data: b"", lambda data: data[:9]])
@pytest.mark.parametrize("compression", ["gz", "bz2", "xz"])
def test_damaged(tmp_path, compression, spoil):
    """A damaged archive is an error in words."""
    archive = tmp_path / "env.tar.gz"
    pack(archive, file("a", os.urandom(50_000).hex()), mode=f"w:{compression}")
    archive.write_bytes(spoil(archive.read_bytes()))
    command = [sys.executable, "-m", "pyruntime.runtime.environments.unpack", archive, tmp_path / "env"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout != ""
    assert done.stderr == ""


@pytest.mark.processes
def test_process_names_what_is_no_text(tmp_path):
    """A member's name may be any bytes, and the sentence about it is still printed."""
    archive = pack(tmp_path / "env.tar", file("../\udcff"))
    command = [sys.executable, "-m", "pyruntime.runtime.environments.unpack", archive, tmp_path / "env"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith(r"its member '../\udcff' would be outside")

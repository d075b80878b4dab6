# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A folder that exists as long as it is held."""

import stat
import tempfile

import pytest

from pyruntime.runtime.repository import override_folder
from pyruntime.runtime.repository.override_folder import OverrideFolder
from pyruntime.utils.errors import LoadError


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Where folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_model(place):
    """The files make a model's folder, which has the model's name and is private."""
    folder = OverrideFolder("m", {"1/model.py": b"a", "2/sub/b.bin": b"\0", "labels.txt": b""})
    found = folder.read()
    assert (found.name, found.path, found.config_path) == ("m", str(folder.path), None)
    assert (found.version_dirs, found.problem) == ((1, 2), None)
    assert (folder.path / "2" / "sub" / "b.bin").read_bytes() == b"\0"
    (parent,) = place.iterdir()
    assert stat.S_IMODE(parent.stat().st_mode) == 0o700
    folder.release()
    assert list(place.iterdir()) == []


def test_held_by_several(place):
    """The folder is removed with its last holder."""
    folder = OverrideFolder("m", {"1/model.py": b"a"})
    folder.hold()
    folder.release()
    assert folder.path.exists()
    folder.release()
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("files", [{"1": b"", "1/model.py": b""}, {"a" * 300: b""}, {"\ud800": b""}, {"a\0b": b""}])
def test_files_that_cannot_be(place, files):
    """Files that no file system accepts are an error of the model, and leave nothing behind."""
    with pytest.raises(LoadError, match=r"^the override files of model 'm' cannot be written: ."):
        OverrideFolder("m", files)
    assert list(place.iterdir()) == []


def test_a_folder_that_somebody_else_removed(place, caplog):
    """The folder is gone, which was the aim; the log has a message."""
    folder = OverrideFolder("m", {"1/model.py": b"a"})
    (parent,) = place.iterdir()
    parent.rename(place / "elsewhere")
    folder.release()
    assert "cannot be removed" in caplog.text


def test_no_temporary_folder(monkeypatch, tmp_path):
    """A machine without a folder for temporary files refuses the load with the reason."""
    monkeypatch.setattr(override_folder.tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(LoadError) as caught:
        OverrideFolder("m", {"1/model.py": b""})
    assert str(caught.value) == "the override files of model 'm' cannot be written: No such file or directory"

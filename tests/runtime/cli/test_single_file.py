# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Repositories made of one file."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from pyruntime.runtime.cli.single_file import replace_files
from pyruntime.runtime.repository.scan import scan
from pyruntime.runtime.settings import SettingsError


@pytest.fixture
def model_of():
    """`model_of(path)`: the only model of the repository that is made of a file."""
    with ExitStack() as resources:

        def model_of(path):
            repositories = replace_files([str(path)], resources)
            (model,) = scan(repositories)
            return model

        yield model_of


def write(path, text="pass\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_any_name(tmp_path, model_of):
    """A file has its model's name, and is version 1 with all that lies beside it."""
    write(tmp_path / "helper.py")
    model = model_of(write(tmp_path / "scale.py"))
    assert (model.name, model.version_dirs) == ("scale", (1,))
    assert Path(model.path, "1", "helper.py").samefile(tmp_path / "helper.py")
    assert 'default_model_filename: "scale.py"' in Path(model.config_path).read_text()


def test_model_file(tmp_path, model_of):
    """A model.py has its folder's name, and the configuration beside it, if there is one."""
    file = write(tmp_path / "scale/model.py")
    assert (model_of(file).name, model_of(file).config_path) == ("scale", None)
    write(tmp_path / "scale/config.pbtxt", "max_batch_size: 3")
    assert Path(model_of(file).config_path).read_text() == "max_batch_size: 3"


def test_file_of_a_repository(tmp_path, model_of):
    """A model.py in a version's folder is its model, with all versions, and no other model of the repository."""
    write(tmp_path / "m/config.pbtxt", "max_batch_size: 3")
    write(tmp_path / "other/1/model.py")
    write(tmp_path / "m/1/model.py")
    model = model_of(write(tmp_path / "m/2/model.py"))
    assert (model.name, model.version_dirs) == ("m", (1, 2))
    assert Path(model.config_path).read_text() == "max_batch_size: 3"


def test_others_stay(tmp_path):
    """Folders, and paths that do not exist, are repositories as they are; what is made is removed again."""
    folder = tmp_path / "folder.py"
    folder.mkdir()
    file = write(tmp_path / "m.py")
    with ExitStack() as resources:
        first, made, last = replace_files([str(folder), str(file), "missing.py"], resources)
        assert (first, last) == (str(folder), "missing.py")
        assert Path(made).is_dir()
    assert not Path(made).exists()
    assert file.read_text() == "pass\n"


def test_no_room(tmp_path, monkeypatch):
    """A machine without a folder for temporary files is an error of one sentence."""

    def fail(*arguments, **options):
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("pyruntime.runtime.cli.single_file.TemporaryDirectory", fail)
    file = write(tmp_path / "m.py")
    with ExitStack() as resources, pytest.raises(SettingsError, match="no model repository can be made of"):
        replace_files([str(file)], resources)

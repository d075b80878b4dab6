# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Repositories made of one file."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from pyruntime.runtime.cli.single_file import replace_files
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.repository.fingerprint import fingerprints, folder_stamp
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


@pytest.fixture
def stamps_of(model_of):
    """`stamps_of(path)()`: what polls and loads compare of the model that is made of a file."""

    def stamps_of(path):
        model = model_of(path)
        config = parse_model_config('backend: "python"', "config.pbtxt")

        def stamps():
            found = fingerprints(model, config, model.version_dirs)[1]
            return folder_stamp(model.path), found.shared, found.own

        return stamps

    return stamps_of


@pytest.mark.parametrize("name", ["m.py", "model.py"])
@pytest.mark.parametrize(
    "path", ["{name}", "helper.py", "new.py", "fast.abi3.so", "package/__init__.py", "package/sub/__init__.py"]
)
def test_what_is_a_change(tmp_path, stamps_of, name, path):
    """The file itself, and the modules and packages beside it."""
    file = write(tmp_path / "m" / name)
    write(tmp_path / "m/helper.py")
    write(tmp_path / "m/package/__init__.py")
    stamps = stamps_of(file)
    before = stamps()
    write(tmp_path / "m" / path.format(name=name), "changed\n")
    after = stamps()
    assert (after[0] != before[0], after[1] == before[1], after[2] != before[2]) == (True, True, True)


@pytest.mark.parametrize("path", ["server.log", "venv/lib/numpy.py", "package/data.csv", "3/model.py", "notes/a.py"])
def test_what_is_none(tmp_path, stamps_of, path):
    """Other files beside it: the server's own log may be one, and would have it loaded again for ever."""
    file = write(tmp_path / "m.py")
    write(tmp_path / "package/__init__.py")
    stamps = stamps_of(file)
    before = stamps()
    write(tmp_path / path)
    assert stamps() == before


def test_a_changed_configuration_beside_a_model_file(tmp_path, stamps_of):
    """A poll sees it."""
    file = write(tmp_path / "m/model.py")
    write(tmp_path / "m/config.pbtxt", "max_batch_size: 3")
    stamps = stamps_of(file)
    before = stamps()
    write(tmp_path / "m/config.pbtxt", "max_batch_size: 16")
    assert stamps()[0] != before[0]


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

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Scanning repositories: every model is found, and one bad model never hides the others."""

import os

import pytest

from pyruntime.runtime.repository.scan import ModelFolder, find_model, layout_warning, scan
from pyruntime.utils.errors import LoadError


def make(root, *paths):
    """Makes a file for each path, or a folder for those that end in a slash."""
    for path in paths:
        target = root / path
        if path.endswith("/"):
            target.mkdir(parents=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
    return str(root)


def names(folders):
    return [folder.name for folder in folders]


def test_a_model(tmp_path):
    """A model is a folder: its configuration and its numbered folders are found, and nothing else matters."""
    root = make(tmp_path, "m/config.pbtxt", "m/1/model.py", "m/10/", "m/2/model.py", "m/03/", "m/labels.txt", "m/7")
    path = os.path.join(root, "m")
    assert scan([root]) == [ModelFolder("m", path, os.path.join(path, "config.pbtxt"), (1, 2, 10))]


class TestWarnings:
    @pytest.mark.parametrize("paths", [["m/1/model.py"], ["m/"], ["1/", "m/"]])
    def test_repository(self, tmp_path, paths):
        """A repository with models causes no warning."""
        assert layout_warning(make(tmp_path, *paths)) is None

    @pytest.mark.parametrize("paths", [[], ["model.py"], [".git/"]])
    def test_no_models(self, tmp_path, paths):
        """The warning for a repository without models shows where a model would be."""
        root = make(tmp_path, *paths)
        assert layout_warning(root) == (
            f"model repository '{root}' has no models; each folder in it is one, such as '{root}/my_model/1/model.py'"
        )

    @pytest.mark.parametrize("paths", [["1/model.onnx"], ["1/", "3/"], ["config.pbtxt", "1/", "configs/"]])
    def test_folder_of_a_model(self, tmp_path, paths):
        """The warning for the folder of a model names the folder above."""
        root = make(tmp_path / "m", *paths)
        assert layout_warning(root) == (
            f"model repository '{root}' looks like the folder of one model; its repository is the folder above, "
            f"'{tmp_path}'"
        )

    def test_unreadable(self, tmp_path):
        """A repository that does not exist is an error."""
        with pytest.raises(LoadError):
            layout_warning(str(tmp_path / "missing"))


def test_a_model_without_anything(tmp_path):
    """A folder without configuration and versions is a model; its load reports what is missing."""
    root = make(tmp_path, "m/")
    assert scan([root]) == [ModelFolder("m", os.path.join(root, "m"), None, ())]


def test_what_is_no_model(tmp_path):
    """Hidden folders, Python's caches, plain files and broken links are no models."""
    root = make(tmp_path, "m/1/", ".git/1/", "__pycache__/", "README.md")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    assert names(scan([root])) == ["m"]


def test_links_are_followed(tmp_path):
    """Models, versions and configurations may be links; the model has the link's name."""
    make(tmp_path, "elsewhere/1/model.py", "elsewhere/basic.pbtxt")
    (tmp_path / "elsewhere" / "config.pbtxt").symlink_to("basic.pbtxt")
    (tmp_path / "elsewhere" / "2").symlink_to("1")
    root = make(tmp_path / "repository", "other/")
    (tmp_path / "repository" / "m").symlink_to(tmp_path / "elsewhere")
    found = scan([root])[0]
    assert (found.name, found.version_dirs) == ("m", (1, 2))
    assert found.config_path == os.path.join(root, "m", "config.pbtxt")


def test_a_custom_configuration_name(tmp_path):
    """`configs/X.pbtxt` is preferred where it is, and `config.pbtxt` is there for the others."""
    root = make(tmp_path, "a/config.pbtxt", "a/configs/x.pbtxt", "b/config.pbtxt", "c/configs/y.pbtxt")
    paths = [folder.config_path for folder in scan([root], config_name="x")]
    assert paths == [os.path.join(root, "a/configs/x.pbtxt"), os.path.join(root, "b/config.pbtxt"), None]


def test_several_repositories(tmp_path):
    """Models of all repositories are in one order; a repository given twice counts once."""
    first = make(tmp_path / "first", "b/", "d/")
    second = make(tmp_path / "second", "a/", "c/")
    folders = scan([first, second, first])
    assert names(folders) == ["a", "b", "c", "d"]
    assert all(folder.problem is None for folder in folders)


def test_the_same_model_twice(tmp_path):
    """A model that is in two repositories is served from neither, and both places are named; others are unharmed."""
    first = make(tmp_path / "first", "m/1/", "only_here/")
    second = make(tmp_path / "second", "m/2/")
    one, other, healthy = scan([first, second])
    assert one.problem == other.problem
    assert one.problem == (
        f"model 'm' is in more than one place, so that none of them is served: '{first}/m', '{second}/m'"
    )
    assert healthy.problem is None


def test_a_relative_repository(tmp_path, monkeypatch):
    """Paths are absolute, since the processes that read them have working folders of their own."""
    make(tmp_path / "models", "m/")
    monkeypatch.chdir(tmp_path)
    assert scan(["models"])[0].path == str(tmp_path / "models" / "m")


@pytest.mark.parametrize(("name", "why"), [("missing", "No such file or directory"), ("plain", "Not a directory")])
def test_a_repository_that_cannot_be_read(tmp_path, name, why):
    """This is an error of the operator, with the path as it was given."""
    make(tmp_path, "plain")
    path = str(tmp_path / name)
    with pytest.raises(LoadError, match=f"^model repository '{path}' cannot be read: {why}$"):
        scan([path])


def test_a_folder_that_cannot_be_read(tmp_path, monkeypatch):
    """This is a problem of that model only."""
    root = make(tmp_path, "bad/1/", "good/1/")
    real = os.scandir

    def scandir(path):
        if str(path).endswith("bad"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    bad, good = scan([root])
    assert bad.problem == f"folder '{root}/bad' of model 'bad' cannot be read: Permission denied"
    assert (good.version_dirs, good.problem) == ((1,), None)


def test_a_version_that_leads_to_itself(tmp_path):
    """A loop of links is a problem of its model, not a crash."""
    root = make(tmp_path, "m/2/")
    (tmp_path / "m" / "1").symlink_to("1")
    assert "Too many levels of symbolic links" in scan([root])[0].problem


@pytest.mark.parametrize("name", ["new\nline", " padded ", "back\\slash"])
def test_invalid_names(tmp_path, name):
    """A name that could not be used in an address or shown in a log is a problem of that model."""
    (tmp_path / name).mkdir()
    assert scan([str(tmp_path)])[0].problem == f"{name!r} is no name for a model: it has invalid characters"


def test_a_name_that_is_no_text(tmp_path):
    """A name of bytes that are not UTF-8 is a problem of that model."""
    os.mkdir(os.fsencode(tmp_path) + b"/caf\xe9")
    assert scan([str(tmp_path)])[0].problem == "'caf\\udce9' is no name for a model: it has invalid characters"


class TestFindModel:
    def test_as_scan_has_it(self, tmp_path):
        """One model is found as scanning everything finds it."""
        root = make(tmp_path, "m/config.pbtxt", "m/configs/fast.pbtxt", "m/2/", "n/1/")
        for config_name in (None, "fast"):
            assert find_model([root], "m", config_name) == scan([root], config_name)[0]

    @pytest.mark.parametrize("name", ["o", "README.md", ".hidden", "__pycache__", "a\0b", "\ud800", "m" * 300])
    def test_what_is_no_model(self, tmp_path, name):
        """A name that is not a folder, or a folder that does not count, is no model."""
        root = make(tmp_path, "m/1/", "README.md", ".hidden/1/", "__pycache__/")
        assert find_model([root], name) is None

    def test_rivals(self, tmp_path):
        """A model that is in two places is found with that problem, unless they are the same."""
        first, second = make(tmp_path / "a", "m/1/"), make(tmp_path / "b", "m/1/")
        assert "is in more than one place" in find_model([first, second], "m").problem
        assert find_model([first, first], "m").problem is None

    def test_a_repository_that_is_not_there(self, tmp_path):
        """Other repositories have their models all the same."""
        root = make(tmp_path / "a", "m/1/")
        assert find_model([str(tmp_path / "missing"), root], "m").name == "m"

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""When two loads of a model would be the same."""

import os

import pytest

from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.repository.fingerprint import config_stamp, fingerprints
from pyruntime.runtime.repository.scan import find_model

CONFIG = "backend: 'python'"


@pytest.fixture
def model(tmp_path):
    """A model's folder, and two versions that are served."""
    for path in ("1/model.py", "1/weights/a.bin", "2/model.py", "3/model.py", "helper.py", "config.pbtxt"):
        file = tmp_path / "m" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)
    return tmp_path / "m"


def look(model, text=CONFIG):
    folder = find_model([str(model.parent)], "m")
    return fingerprints(folder, parse_model_config(text, "config.pbtxt"), (1, 2))


def touch(path):
    """Change the time that a file was changed at, for certain."""
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CONFIG, False),
        (CONFIG + " instance_group [ { count: 2 } ]", True),
        (CONFIG + " max_batch_size: 4", False),
        (CONFIG + " max_batch_size: 4 instance_group [ { count: 2 } ]", False),
    ],
)
def test_instance_groups_only(model, text, expected):
    """Instance groups are told apart from all other changes."""
    before, after = look(model), look(model, text)
    assert before[1].differs_in_instances_only(after[1]) is expected
    assert (before == after) is (text == CONFIG)
    touch(model / "1" / "model.py")
    assert not before[1].differs_in_instances_only(look(model, text)[1])
    assert before[2].differs_in_instances_only(look(model, text)[2]) is expected


def test_default_instances(model):
    """A configuration without groups is another one than that with the default group: the backend may choose."""
    folder = find_model([str(model.parent)], "m")
    config = parse_model_config(CONFIG + " instance_group [ { } ]", "config.pbtxt")
    assert fingerprints(folder, config, (1,)) != fingerprints(folder, config, (1,), default_instances=True)


def test_nothing_changed(model):
    """A model that is as it was has the fingerprints that it had; versions differ from each other."""
    assert look(model) == look(model)
    assert look(model)[1] != look(model)[2]


@pytest.mark.parametrize("path", ["1/model.py", "1/weights/a.bin"])
def test_a_file_of_a_version(model, path):
    """A file that changed is a change of its version alone."""
    before = look(model)
    touch(model / path)
    after = look(model)
    assert after[1] != before[1]
    assert after[2] == before[2]


def test_a_file_of_another_size(model):
    """A file of another size is a change, even if a copy has kept the time."""
    before = look(model)
    file = model / "1" / "model.py"
    found = file.stat()
    file.write_text("something else")
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert look(model)[1] != before[1]


def test_files_that_come_and_go(model):
    """An added or removed file is a change, whatever its time."""
    before = look(model)
    (model / "2" / "new.py").write_text("")
    with_new = look(model)
    (model / "2" / "new.py").unlink()
    (model / "2" / "model.py").rename(model / "2" / "renamed.py")
    renamed = look(model)
    assert len({before[2], with_new[2], renamed[2]}) == 3
    assert before[1] == with_new[1] == renamed[1]


def test_a_file_of_all_versions(model):
    """A file beside the versions belongs to all of them."""
    before = look(model)
    touch(model / "helper.py")
    after = look(model)
    assert all(after[version] != before[version] for version in (1, 2))


@pytest.mark.parametrize(
    "path",
    [
        "3/model.py", "17/model.py", "config.pbtxt", "configs/fast.pbtxt", "1/__pycache__/model.cpython-311.pyc",
        "__pycache__/x.pyc", "1/.model.py.swp", "1/model.py~", ".git/index",
    ],
)  # fmt: skip
def test_what_does_not_count(model, path):
    """Caches, what editors leave, versions that are not served; and the configuration's file, which is read instead."""
    before = look(model)
    file = model / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("changed")
    touch(file)
    assert look(model) == before


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("  backend :  'python' # the same", True),
        ("backend: 'python' version_policy { all {} }", True),
        ("backend: 'python' max_batch_size: 4", False),
        ("backend: 'python' instance_group { count: 2 }", False),
    ],
)
def test_configuration(model, text, same):
    """Only the meaning of the configuration counts, without the policy for versions."""
    assert (look(model, text) == look(model)) is same


def test_another_place(model):
    """The same files in another folder are another model."""
    before = look(model)
    model.parent.rename(model.parent.with_name("elsewhere"))
    assert look(model.parent.with_name("elsewhere") / "m") != before


def test_links(model, tmp_path):
    """Links are followed, also those that lead in circles or nowhere."""
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "data").write_text("1")
    (model / "1" / "link").symlink_to(tmp_path / "far")
    (model / "1" / "circle").symlink_to(model / "1")
    (model / "1" / "nowhere").symlink_to(tmp_path / "missing")
    before = look(model)
    assert before == look(model)
    touch(tmp_path / "far" / "data")
    assert look(model)[1] != before[1]


def test_names_of_any_bytes(model):
    """A file's name need not be text."""
    before = look(model)
    with open(os.fsencode(model / "1") + b"/\xff", "wb"):
        pass
    assert look(model)[1] != before[1]


def test_a_version_that_has_gone(model):
    """A missing folder has no files; its loader reports that."""
    before = look(model)
    for file in (model / "2").iterdir():
        file.unlink()
    (model / "2").rmdir()
    after = look(model)
    assert after[1] == before[1]
    assert after[2] != before[2]


def test_config_stamp(model):
    """The configuration's file has a stamp of its own, and none if it is not there."""
    folder = find_model([str(model.parent)], "m")
    before = config_stamp(folder)
    assert before == config_stamp(folder)
    touch(model / "config.pbtxt")
    assert config_stamp(folder) not in (before, None)
    (model / "config.pbtxt").unlink()
    assert config_stamp(folder) is None
    assert config_stamp(find_model([str(model.parent)], "m")) is None

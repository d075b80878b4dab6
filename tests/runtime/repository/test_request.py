# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The result of a request to load a model, by the files on disk."""

import os

import pytest

from pyruntime.runtime.repository.override import parse_override
from pyruntime.runtime.repository.override_folder import OverrideFolder
from pyruntime.runtime.repository.request import LoadRequest, look, read
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import Code, InferenceError, LoadError

PLAIN = LoadRequest()
OVERRIDE = LoadRequest(parse_override('{"backend": "python", "max_batch_size": 7}'))


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text("")
    (folder / "config.pbtxt").write_text("backend: 'python' max_batch_size: 3")
    return folder


class Seen:
    """A model as it is on disk, and the draft to load."""

    def __init__(self, name, request, standing, files, settings):
        sight = look(name, request, standing, files, settings)
        self.override = sight.override
        found = read(sight, settings)
        self.draft = found.draft
        self.fingerprints = found.fingerprints


def see(model, request=PLAIN, standing=None, files=None, mode="explicit"):
    return Seen("m", request, standing, files, ServerSettings((str(model.parent),), model_control_mode=mode))


def test_as_it_is(model):
    """A plain request is for the model in the repository."""
    found = see(model)
    assert (found.draft.config.max_batch_size, found.draft.versions, found.override) == (3, (1,), None)
    assert found.fingerprints.keys() == {1}


def test_where_nothing_is_loaded_again(model):
    """Without explicit control the files are not examined."""
    assert see(model, mode="none").fingerprints == {}


def test_a_configuration_instead(model):
    """A configuration that comes with the request holds for later requests as well."""
    found = see(model, OVERRIDE)
    assert found.draft.config.max_batch_size == 7
    assert see(model, standing=found.override).draft.config.max_batch_size == 7
    assert see(model, standing=found.override).override == found.override
    assert see(model, standing=found.override).fingerprints == found.fingerprints != see(model).fingerprints


@pytest.mark.parametrize("change", ["newer", "gone"])
def test_until_the_file_changes(model, change):
    """An override counts until the model's own configuration changes."""
    standing = see(model, OVERRIDE).override
    file = model / "config.pbtxt"
    if change == "gone":
        file.unlink()
    else:
        os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    found = see(model, standing=standing)
    assert found.draft.config.max_batch_size == (0 if change == "gone" else 3)
    assert found.override is None


def test_a_newer_override(model):
    """The latest one counts."""
    standing = see(model, OVERRIDE).override
    newer = LoadRequest(parse_override('{"backend": "python", "max_batch_size": 8}'))
    assert see(model, newer, standing).draft.config.max_batch_size == 8


def test_files_instead(model):
    """Files are the model then, for this request alone; the repository need not have it."""
    files = OverrideFolder("n", {"5/model.py": b""})
    try:
        settings = ServerSettings((str(model.parent),), model_control_mode="explicit")
        found = Seen("n", OVERRIDE, None, files, settings)
        assert (found.draft.versions, found.draft.config.max_batch_size) == ((5,), 7)
        assert found.draft.folder.path == str(files.path)
        assert found.override is None
    finally:
        files.release()


def test_a_model_that_is_not_there(model):
    """Triton's words for it."""
    with pytest.raises(InferenceError, match=r"^failed to load 'n', failed to poll from model repository$") as caught:
        Seen("n", PLAIN, None, None, ServerSettings((str(model.parent),)))
    assert caught.value.code is Code.INTERNAL


@pytest.mark.parametrize("text", ["name: 'other'", "backend: 3", "ensemble_scheduling {}"])
def test_a_model_that_is_wrong(model, text):
    """A mistake in the configuration is a LoadError."""
    (model / "config.pbtxt").write_text(text)
    with pytest.raises(LoadError):
        see(model)


def test_a_configuration_that_is_wrong(model):
    """A wrong configuration is refused, also if it came with the request."""
    with pytest.raises(LoadError, match="directory name must equal model name"):
        see(model, LoadRequest(parse_override('{"name": "other"}')))

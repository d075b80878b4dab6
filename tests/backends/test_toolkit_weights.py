# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Mapped weights whose files are written to and cut off: the tests map files as frameworks do."""

import mmap
import os
import tempfile
from contextlib import closing

import numpy as np
import pytest

from pyruntime.backends.toolkit import shared_files, weights
from pyruntime.backends.toolkit.settings import read_settings
from pyruntime.backends.toolkit.weights import KeptWeights
from pyruntime.utils.private_mappings import mappings

SIZE = 3 * mmap.PAGESIZE + 100


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The temporary folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def path(tmp_path):
    """A file of weights in a model's folder."""
    path = tmp_path / "model" / "1" / "weights.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(np.arange(SIZE, dtype=np.uint8).tobytes())
    return path


@pytest.fixture
def large(monkeypatch):
    """All weights are large enough to be shared."""
    monkeypatch.setattr(weights, "SHARED_BYTES_MIN", 1)


def settings(instances=1):
    return read_settings({"name": "m", "instance_group": [{"kind": "KIND_CPU", "count": instances}]})


def mapped(path):
    return sorted({os.path.basename(each.path) for each in mappings() if each.path == str(path)})


def ruined(path):
    """Write to the file, as `cp` does, and cut it off."""
    with open(path, "r+b") as file:
        file.write(b"x" * SIZE)
        file.truncate(0)


@pytest.mark.parametrize("mode", ["r", "c"])
def test_the_weights_of_one_instance_do_not_change_with_their_file(path, temporary, mode):
    """Whether the framework may write to them or not. A part of a file is weights, too."""
    array = np.memmap(path, np.uint8, mode)
    part = np.memmap(path, np.uint8, mode, offset=mmap.PAGESIZE + 8)
    assert mapped(path)
    with closing(KeptWeights(settings(), str(path.parent))):
        assert not mapped(path)
        ruined(path)
        assert np.array_equal(array, np.arange(SIZE, dtype=np.uint8))
        assert np.array_equal(part, array[mmap.PAGESIZE + 8 :])
        assert os.listdir(temporary) == []


def test_what_was_written_to_private_memory_stays(path, temporary, large):
    """A framework may have changed the weights, which are then not those of the file, nor of other instances."""
    array = np.memmap(path, np.uint8, "c")
    array[5000] = 77
    with closing(KeptWeights(settings(2), str(path.parent))):
        ruined(path)
        assert array[5000] == 77
        assert array[4999] == 4999 % 256


def test_large_weights_of_several_instances_are_one_file_that_the_last_one_removes(path, temporary, large):
    """The instances are processes; two mappings stand for them."""
    first = np.memmap(path, np.uint8, "r")
    one = KeptWeights(settings(2), str(path.parent))
    second = np.memmap(path, np.uint8, "r")
    other = KeptWeights(settings(2), str(path.parent))
    (folder,) = temporary.iterdir()
    ruined(path)
    assert len([each for each in mappings() if each.path == f"{folder}/weights"]) == 2
    one.close()
    assert list(temporary.iterdir()) == [folder]
    other.close()
    assert not list(temporary.iterdir())
    for array in (first, second):
        assert np.array_equal(array, np.arange(SIZE, dtype=np.uint8))


def test_a_file_that_changed_since_it_was_mapped_is_another_one(path, temporary, large):
    """An instance that loads it has what is there now, the others what was there."""
    first = np.memmap(path, np.uint8, "r")
    one = KeptWeights(settings(2), str(path.parent))
    path.write_bytes(bytes(SIZE))
    second = np.memmap(path, np.uint8, "r")
    other = KeptWeights(settings(2), str(path.parent))
    ruined(path)
    assert (first[5], second[5]) == (5, 0)
    one.close()
    other.close()


def test_without_room_each_instance_has_a_copy_and_the_log_says_so(path, temporary, large, monkeypatch, capsys):
    """The weights do not change all the same."""

    def fail(folder, needed):
        raise OSError(28, f"{needed} bytes are needed")

    monkeypatch.setattr(shared_files, "_check_space", fail)
    said = []
    monkeypatch.setattr(weights.pb_utils.Logger, "log_warn", said.append)
    array = np.memmap(path, np.uint8, "r")
    with closing(KeptWeights(settings(2), str(path.parent))):
        ruined(path)
        assert array[5] == 5
    assert [text.partition(":")[0] for text in said] == [
        f"the instances of model 'm' do not share the weights in '{path}', so that each has a copy"
    ]


def test_weights_that_cannot_be_copied_stay_and_the_log_says_so(path, temporary, monkeypatch):
    """A file that is cut off while it is copied is an error and no signal."""
    said = []
    monkeypatch.setattr(weights.pb_utils.Logger, "log_warn", said.append)
    array = np.memmap(path, np.uint8, "r")
    os.truncate(path, 0)
    KeptWeights(settings(), str(path.parent)).close()
    assert array.size == SIZE
    (text,) = said
    assert text.startswith(f"'{path}' stays mapped from its file, because it cannot be copied: ")


def test_files_elsewhere_are_left_alone(path, temporary, tmp_path):
    """And those that this process writes to."""
    other = tmp_path / "model" / "10"
    other.mkdir()
    written = path.parent / "written"
    for each in (other / "weights.bin", written):
        each.write_bytes(b"x" * 100)
    arrays = [np.memmap(other / "weights.bin", np.uint8, "r"), np.memmap(written, np.uint8, "r+")]
    with closing(KeptWeights(settings(), str(path.parent))):
        assert mapped(other / "weights.bin")
        assert mapped(written)
    del arrays

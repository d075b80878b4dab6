# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What a process maps, and copies in the place of that."""

import mmap

import numpy as np
import pytest

from pyruntime.utils.private_mappings import is_in, mappings, replace, replace_by


def of(path):
    return [each for each in mappings() if each.path == str(path)]


def test_files_that_are_gone_are_no_mappings(tmp_path):
    """Nobody writes to them. Names are those of the files."""
    path = tmp_path / "a\nb"
    path.write_bytes(b"x" * 10)
    with open(path) as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert [(each.flags, each.offset, each.size) for each in of(path)] == [("r--s", 0, mmap.PAGESIZE)]
        path.unlink()
        assert not [each for each in mappings() if "a\nb" in each.path]


@pytest.mark.parametrize(("path", "found"), [("/a/b", True), ("/a/b/c", True), ("/a/bc", False), ("/a", False)])
def test_places_are_files_and_folders(path, found):
    assert is_in(path, ["/x", "/a/b"]) == found


def test_a_copy_has_the_protection_of_the_mapping(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    array = np.memmap(path, np.uint8, "c")
    replace(str(path), of(path))
    with open("/proc/self/maps") as maps:
        (found,) = [each for each in maps if each.rstrip().endswith("/memfd:file (deleted)")]
    assert found.split()[1] == "rw-p"
    array[0] = 1
    assert array.tolist() == [1, *b"x" * 9]
    assert path.read_bytes() == b"x" * 10


@pytest.mark.parametrize(("contents", "is_used"), [(b"x" * 10, True), (b"x" * 9, False), (b"x" * 9 + b"y", False)])
def test_another_file_takes_the_place_if_it_has_the_same_contents(tmp_path, contents, is_used):
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_bytes(b"x" * 10)
    other.write_bytes(contents)
    array = np.memmap(path, np.uint8, "r")
    assert replace_by(str(other), of(path)) is is_used
    assert (len(of(path)), len(of(other))) == ((0, 1) if is_used else (1, 0))
    assert array.tobytes() == b"x" * 10

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Libraries whose files are written to, cut off or removed while their code runs, in processes of their own.

The library has a neighbour in its folder, a thread that runs in it, and a page of each section that nobody has read.
"""

import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

LOAD = """
import ctypes, os, shutil, sys
from pyruntime.utils.private_libraries import LoadedLibraries, private_libraries
from pyruntime.utils.private_mappings import mappings

folder = sys.argv[1]
ours, neighbour = (os.path.join(folder, name) for name in ("libreplaced.so", "libneighbour.so"))
warnings = []

def names():
    return sorted({os.path.basename(each.path) for each in mappings() if each.path.startswith(folder)})

def load():
    library = ctypes.CDLL(ours)
    library.turnsOfThread.restype = ctypes.c_long
    return library

def ruin():
    for path in (ours, neighbour):
        with open(path, "r+b") as file:
            file.truncate(0)
"""
EXPECTED = 2 * 100 + 2 * 10 + 3


@pytest.fixture
def folder(compile_library, tmp_path):
    """The two libraries in a folder of their own."""
    neighbour = compile_library("neighbour.c", "-DFACTOR=3")
    found = ["-Wl,--no-as-needed", f"-L{neighbour.parent}", "-l:libneighbour.so", "-Wl,-rpath,$ORIGIN"]
    shutil.copy(neighbour, tmp_path)
    shutil.copy(compile_library("replaced.c", "-DFACTOR=2", *found), tmp_path)
    return tmp_path


@pytest.fixture
def run(folder):
    """`run(code)`: the lines that a process prints, which has LOAD before its code."""

    def run(code):
        done = subprocess.run([sys.executable, "-c", LOAD + code, folder], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_code_goes_on_when_its_file_and_that_of_its_neighbour_are_cut_off(run):
    """Also a thread that runs in it. Without the copy a process ends by SIGBUS here."""
    code = """
with private_libraries([folder], warnings.append):
    library = load()
print(names(), warnings)
ruin()
turns = library.turnsOfThread()
while library.turnsOfThread() == turns:
    pass
print(library.scaled(1), library.endThread())
"""
    assert run(code) == ["[] []", f"{EXPECTED} 0"]


def test_code_stays_as_it_was_when_another_library_is_copied_over_it(run, compile_library, folder):
    """As `cp` does it, which keeps the inode."""
    other = compile_library("neighbour.c", "-DFACTOR=7")
    code = f"""
with private_libraries([folder], warnings.append):
    library = load()
shutil.copyfile({str(other)!r}, neighbour)
print(library.scaled(1), library.endThread())
"""
    assert run(code) == [f"{EXPECTED} 0"]


def test_the_loader_knows_the_library_by_its_path_and_its_inode(run):
    """A second load of it is the same library, and a library finds its own path, as if nothing had happened."""
    code = """
with private_libraries([folder], warnings.append):
    library = load()
path = ctypes.create_string_buffer(4096)
print(library.ownPath(path, 4096), path.value.decode() == ours)
again = ctypes.CDLL(os.path.join(folder, ".", "libreplaced.so"))
print(again._handle == library._handle, library.endThread())
"""
    assert run(code) == ["1 True", "True 0"]


def test_memory_has_the_name_of_the_library(run):
    """For those who look at /proc/PID/maps. Nobody can write to it."""
    code = """
with private_libraries([folder], warnings.append):
    library = load()
lines = [line.split() for line in open("/proc/self/maps") if line.rstrip().endswith("/memfd:libreplaced.so (deleted)")]
print(sorted(line[1] for line in lines), open("/proc/self/maps").read().count(folder))
library.endThread()
"""
    assert run(code) == ["['r--p', 'r--p', 'r-xp', 'rw-p'] 0"]


def test_what_was_loaded_before_and_what_lies_elsewhere_is_left_alone(run):
    """A library may be writing to its data, and a place may be one file."""
    code = """
first = ctypes.CDLL(neighbour)
with private_libraries([folder], warnings.append):
    library = load()
print(names())
library.endThread()
"""
    assert run(code) == ["['libneighbour.so']"]
    code = """
with private_libraries([neighbour, folder + "/none"], warnings.append):
    library = load()
print(names())
library.endThread()
"""
    assert run(code) == ["['libreplaced.so']"]


def test_a_library_that_is_too_large_stays_and_somebody_is_told(run):
    """The copy would be memory that the kernel cannot take back."""
    code = """
import pyruntime.utils.private_libraries as module
module.LIBRARY_BYTES_MAX = 100
with private_libraries([ours], warnings.append):
    library = load()
print(names(), warnings[0].partition(" bytes, ")[2][:44], len(warnings))
library.endThread()
"""
    assert run(code) == ["['libneighbour.so', 'libreplaced.so'] which is more than 100, and stays mapped fro 1"]


def test_a_file_that_is_cut_off_before_the_copy_is_no_signal(run):
    """Somebody is told."""
    code = """
loaded = LoadedLibraries([neighbour])
ctypes.CDLL(neighbour)
os.truncate(neighbour, 0)
loaded.keep(warnings.append)
print(names(), "because it cannot be copied: Input/output error" in warnings[0], flush=True)
os._exit(0)  # before its destructors run
"""
    assert run(code) == ["['libneighbour.so'] True"]

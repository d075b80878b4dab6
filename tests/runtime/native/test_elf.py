# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Libraries of a real compiler are read as they are; any other data is one kind of error."""

import mmap
import platform
import struct
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.native import elf
from pyruntime.runtime.native.elf import ElfError, SharedObject, read_shared_object, read_symbols

pytestmark = pytest.mark.processes

MACHINE = platform.machine()
SOURCE = """
extern int far_away(int);
extern int perhaps(int) __attribute__((weak));
extern int exported_data;
int exported_data = 1;
static int local(int value) { return value + 1; }
__attribute__((visibility("hidden"))) int hidden(int value) { return local(value); }
__attribute__((weak)) int weakly(int value) { return value; }
int exported(int value) { return perhaps ? perhaps(value) : far_away(hidden(value)); }
"""


def compile_library(folder, name, source, *options):
    """Compile C into a shared library; its path."""
    path = folder / name
    code = folder / f"{name}.c"
    code.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", path, code, *map(str, options)], check=True)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where this module's libraries lie."""
    return tmp_path_factory.mktemp("elf")


@pytest.fixture(scope="module")
def image(folder):
    """A library that has everything which is read."""
    compile_library(folder, "libneeded.so", "int far_away(int value) { return value; }", "-Wl,-soname,libneeded.so.3")
    return compile_library(folder, "libwhole.so", SOURCE, *whole(folder)).read_bytes()


def whole(folder):
    """The linker's options for a library that has every part that is read."""
    return "-nostdlib", "-L", folder, "-lneeded", "-Wl,-soname,libwhole.so.1", "-Wl,-rpath,$ORIGIN:/opt/lib"


@pytest.mark.parametrize(
    ("tags", "rpath", "runpath"),
    [("disable", ("$ORIGIN", "/opt/lib"), ()), ("enable", (), ("$ORIGIN", "/opt/lib"))],
)
def test_what_a_library_says(image, folder, tags, rpath, runpath):
    """Name, needed libraries and the folders to look for them in, be they of the older or of the newer kind."""
    path = compile_library(folder, f"lib{tags}.so", SOURCE, *whole(folder), f"-Wl,--{tags}-new-dtags")
    found = read_shared_object(path.read_bytes())
    assert found == SharedObject(MACHINE, "libwhole.so.1", ("libneeded.so.3",), rpath, runpath)


@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
def test_symbols(folder, image, style):
    """Exported is what others see, weak or not; undefined is what must be found, whichever hash table there is."""
    path = compile_library(folder, f"lib{style}.so", SOURCE, f"-Wl,--hash-style={style}")
    symbols = read_symbols(path.read_bytes())
    assert {"exported", "exported_data", "weakly"} <= symbols.exported
    assert not symbols.exported & {"local", "hidden", "far_away", "perhaps"}
    assert symbols.undefined == {"far_away"}


def test_a_library_without_anything(folder):
    """No name, no needed library, no folder, no symbol."""
    path = compile_library(folder, "libempty.so", "", "-nostdlib", "-Wl,--hash-style=gnu")
    assert read_shared_object(path.read_bytes()) == SharedObject(MACHINE, "", (), (), ())
    assert read_symbols(path.read_bytes()).exported == frozenset()


def test_the_table_of_sections_is_not_needed(image):
    """A library may be stripped of what only linkers read."""
    bare = bytearray(image)
    bare[40:48] = bytes(8)
    bare[58:64] = bytes(6)
    assert read_shared_object(bytes(bare)) == read_shared_object(image)
    assert read_symbols(bytes(bare)) == read_symbols(image)


def test_a_mapped_file(folder, image):
    """A large library need not be read as a whole."""
    with open(folder / "libwhole.so", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert read_shared_object(mapped) == read_shared_object(image)
        assert read_symbols(mapped) == read_symbols(image)


@pytest.mark.parametrize(
    ("offset", "patch", "sentence"),
    [
        (0, b"PK", "is no ELF file"),
        (4, b"\1", "is built for a 32-bit machine"),
        (5, b"\2", "is built for a machine of another byte order"),
        (16, struct.pack("<H", 2), "is no shared library"),
        (18, struct.pack("<H", 40), "is built for machine 40 of ELF, which is neither x86_64 nor aarch64"),
        (54, struct.pack("<H", 32), "segments of 32 bytes"),
        (56, struct.pack("<H", 257), "has 257 segments of 56 bytes"),
        (56, struct.pack("<H", 0), "has nothing for the dynamic loader"),
        (32, struct.pack("<Q", 1 << 63), "is truncated"),
    ],
)
def test_what_is_wrong_is_said(image, offset, patch, sentence):
    """Each fault of the header has its words."""
    with pytest.raises(ElfError, match=sentence):
        read_shared_object(image[:offset] + patch + image[offset + len(patch) :])


def test_the_other_machine(image):
    """A library of the other machine that is known can be read here; whether it fits is not judged."""
    other = {"x86_64": (183, "aarch64"), "aarch64": (62, "x86_64")}[MACHINE]
    assert read_shared_object(image[:18] + struct.pack("<H", other[0]) + image[20:]).machine == other[1]


def patched(image, tag, value):
    """The library with another value in the first entry of its dynamic segment that has the tag."""
    at = image.index(struct.pack("<q", tag), dynamic_at(image))
    return image[: at + 8] + struct.pack("<Q", value) + image[at + 16 :]


def dynamic_at(image):
    (table,) = struct.unpack_from("<Q", image, 32)
    (count,) = struct.unpack_from("<H", image, 56)
    segments = [struct.unpack_from("<IIQQQQQQ", image, table + 56 * index) for index in range(count)]
    return next(segment[2] for segment in segments if segment[0] == 2)


@pytest.mark.parametrize(
    ("tag", "value", "sentence"),
    [
        (5, 1 << 40, "address 0x10000000000 is nowhere in it"),
        (10, 1 << 40, "table of strings goes beyond its end"),
        (10, 4, "a name in it does not end"),
        (14, 1 << 50, "a name in it does not end"),
        (14, (1 << 64) - 1, "a name in it does not end"),
    ],
)
def test_damaged_entries(image, tag, value, sentence):
    """Each entry that leads out of the file is noticed."""
    with pytest.raises(ElfError, match=sentence):
        read_shared_object(patched(image, tag, value))


@pytest.mark.parametrize("tag", [5, 6, 10])
def test_missing_entries(image, tag):
    """A library without a table of strings or symbols is refused."""
    at = image.index(struct.pack("<q", tag), dynamic_at(image))
    with pytest.raises(ElfError, match=f"has no entry {tag}"):
        read_symbols(image[:at] + struct.pack("<q", 0x70000001) + image[at + 8 :])


def gnu_hash_at(image):
    """Where the hash table is; addresses at the beginning of a library are offsets."""
    at = image.index(struct.pack("<q", 0x6FFFFEF5), dynamic_at(image))
    return at, struct.unpack_from("<Q", image, at + 8)[0]


def test_without_a_hash_table(image):
    """Without one the loader could find no symbol either."""
    at, _ = gnu_hash_at(image)
    with pytest.raises(ElfError, match="has no hash table of its symbols"):
        read_symbols(image[:at] + struct.pack("<q", 0x70000001) + image[at + 8 :])


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        (0, 1 << 31, "hash table goes beyond its end"),
        (2, 1 << 31, "hash table goes beyond its end"),
        (1, 1 << 20, "table of symbols goes beyond its end"),
        (1, 1 << 31, "has 2147483648 symbols, more than"),
    ],
)
def test_damaged_hash_table(image, field, value, sentence):
    """Buckets and symbol counts must not exceed the file."""
    at = gnu_hash_at(image)[1] + 4 * field
    with pytest.raises(ElfError, match=sentence):
        read_symbols(image[:at] + struct.pack("<I", value) + image[at + 4 :])


@pytest.mark.parametrize(("limit", "sentence"), [("SYMBOLS_MAX", "symbols, more than 1"), ("NAME_BYTES_MAX", "names")])
def test_limits_of_symbols(image, monkeypatch, limit, sentence):
    """The number of symbols and the length of their names are limited."""
    monkeypatch.setattr(elf, limit, 1)
    with pytest.raises(ElfError, match=sentence):
        read_symbols(image)


def test_limit_of_entries(image, monkeypatch):
    """The number of entries of the dynamic segment is limited."""
    monkeypatch.setattr(elf, "ENTRIES_MAX", 1)
    with pytest.raises(ElfError, match="its dynamic segment has"):
        read_shared_object(image)


def read_all(image):
    """Read everything; whether that went well. Anything but an ElfError comes out."""
    try:
        read_shared_object(image)
        read_symbols(image)
    except ElfError:
        return False
    return True


def test_every_truncation_of_the_head(image):
    """A file that ends early is an error of the same kind, wherever it ends."""
    assert [end for end in range(0, dynamic_at(image), 7) if read_all(image[:end])] == []


@given(data=st.data())
def test_any_change(image, data):
    """A file with any bytes changed is read, or is an ElfError."""
    mutated = bytearray(image)
    # The places that are looked at: the header and its segments, the dynamic segment, and the tables before the code.
    spans = [(0, 64 + 56 * 12), (dynamic_at(image), dynamic_at(image) + 512), (0, 4096), (0, len(image))]
    for _ in range(data.draw(st.integers(1, 6))):
        start, end = data.draw(st.sampled_from(spans))
        at = data.draw(st.integers(start, min(end, len(image)) - 8))
        value = data.draw(st.sampled_from([0, 1, 0x7F, 0xFFFF, 1 << 31, 1 << 32, (1 << 64) - 1]) | st.integers(0, 255))
        size = data.draw(st.sampled_from([1, 2, 4, 8]))
        mutated[at : at + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    read_all(bytes(mutated[: data.draw(st.just(len(image)) | st.integers(0, len(image)))]))


@given(st.binary(max_size=512))
def test_any_bytes(rest):
    """Arbitrary data after a proper beginning is read or refused."""
    read_all(b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HH", 3, 62) + rest)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Every way out of the folder that an archive is unpacked to is closed."""

import pytest

from pyruntime.runtime.environments.members import LEVELS_MAX, Kind, Members
from pyruntime.utils.errors import LoadError

FOLDER, FILE, LINK, HARD_LINK = Kind.FOLDER, Kind.FILE, Kind.LINK, Kind.HARD_LINK


def admit(*members, **limits):
    """Judge members, (name, kind, target) each; the paths of all."""
    judge = Members(**limits)
    return [judge.admit(name, kind, target, 10) for name, kind, target in members]


def test_usual_members():
    """Folders may come late, twice or never; links lead up and down inside."""
    assert admit(
        ("./", FOLDER, ""),
        ("./bin/python3.11", FILE, ""),
        ("bin", FOLDER, ""),
        ("bin/", FOLDER, ""),
        ("bin/python", LINK, "python3.11"),
        ("lib/a/../b".replace("/../", "/"), FILE, ""),
        ("lib/here", LINK, "."),
        ("lib64", LINK, "lib"),
        ("lib/a/up", LINK, "../../bin/./python"),
        ("lib/a/top", LINK, "../.."),
        ("bin/same", HARD_LINK, "./bin/python3.11"),
        ("bin/same2", HARD_LINK, "bin/same"),
    )[:5] == ["", "bin/python3.11", "bin", "bin", "bin/python"]


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a/..", "..", "//x", "a\0b"])
@pytest.mark.parametrize("kind", [FOLDER, FILE, LINK, HARD_LINK])
def test_names_outside(name, kind):
    """A name is relative, and never goes up."""
    with pytest.raises(LoadError, match="would be outside"):
        admit(("x", FILE, ""), (name, kind, "x"))


@pytest.mark.parametrize("target", ["/etc", "..", "../x", "a/../../x", "a/..", "./../x", "a\0b"])
def test_links_outside(target):
    """A link must lead inside; one that goes down and up again may lead outside through other links."""
    with pytest.raises(LoadError, match="outside the folder"):
        admit(("link", LINK, target))


def test_link_as_deep_as_it_is():
    """A link may go up as far as it is deep, and no further."""
    admit(("a/b/link", LINK, "../.."))
    with pytest.raises(LoadError, match="outside the folder"):
        admit(("a/b/link", LINK, "../../.."))


@pytest.mark.parametrize("kind", [FOLDER, FILE, LINK])
def test_nothing_below_a_link(kind):
    """Below a link the depth of a name is not the depth of the folder."""
    with pytest.raises(LoadError, match="is below 'a/b', which is no folder"):
        admit(("a/b", LINK, "."), ("a/b/c/d", kind, "."))


def test_nothing_below_a_file():
    """A file has no members."""
    with pytest.raises(LoadError, match="is below 'a', which is no folder"):
        admit(("a", FILE, ""), ("a/b", FILE, ""))


@pytest.mark.parametrize("first", [FILE, LINK])
@pytest.mark.parametrize("second", [FOLDER, FILE, LINK])
def test_names_are_used_once(first, second):
    """Writing a file anew would write through the link that it may be by then."""
    with pytest.raises(LoadError, match="'a' is there twice"):
        admit(("a", first, "b"), ("./a", second, "b"))


def test_folder_does_not_become_a_link():
    """A folder stays one, whether the archive names it or a file in it."""
    for folder in [("a", FOLDER, ""), ("a/b", FILE, "")]:
        with pytest.raises(LoadError, match="'a' is there twice"):
            admit(folder, ("a", LINK, "."))


@pytest.mark.parametrize("target", ["later", "/etc/passwd", "../x", "link", "folder", "", "folder/../file"])
def test_hard_links(target):
    """Another name is only given to a file that the archive brought."""
    with pytest.raises(LoadError, match="is no file that came before it"):
        admit(("file", FILE, ""), ("link", LINK, "file"), ("folder", FOLDER, ""), ("new", HARD_LINK, target))


def test_devices():
    """A member that is not a file, folder or link is refused."""
    with pytest.raises(LoadError, match="'dev/null' is a device"):
        admit(("dev/null", Kind.OTHER, ""))


def test_limits():
    """There is an end to how many members there are, and to how much they contain."""
    files = [(str(number), FILE, "") for number in range(5)]
    admit(*files, members_max=5, bytes_max=50)
    with pytest.raises(LoadError, match="more than 4 members"):
        admit(*files, members_max=4)
    with pytest.raises(LoadError, match="larger than 49 bytes together"):
        admit(*files, bytes_max=49)


def test_folders_in_each_other():
    """A member may be in so many folders, and a name that is too long is not quoted whole."""
    assert admit(("a/" * LEVELS_MAX + "b", FILE, ""))
    with pytest.raises(LoadError) as caught:
        admit(("a/" * 2000 + "b", FILE, ""))
    assert str(caught.value) == (
        f"its member '{'a/' * 50}...' is in 2000 folders in each other, and at most {LEVELS_MAX} are unpacked"
    )

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
from pyruntime.utils.paths import authors_path


def test_links_to_folders_are_followed(tmp_path):
    """The path of a file has the folder that a link leads to, and the file's own name."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real/a.py").symlink_to(tmp_path / "elsewhere.py")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert authors_path(str(tmp_path / "link" / "a.py")) == str(tmp_path.resolve() / "real" / "a.py")


def test_no_path():
    """What has no folder is no file, and stays as it is."""
    assert authors_path("<frozen importlib._bootstrap>") == "<frozen importlib._bootstrap>"
    assert authors_path("") == ""

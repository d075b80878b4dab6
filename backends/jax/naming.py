# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Names the arguments and results of an exported JAX function, which are trees of arrays. (pure)

An array in a dict has the name of its key, in nested dicts the keys joined by dots. Any other array has a name by its
place among all, `INPUT__0` or `OUTPUT__0`: an export does not keep the names of arguments. An argument that is passed
by name is one in a dict.
"""

from __future__ import annotations

from typing import List, Sequence, Union

# The way to an array in a tree: keys of dicts are str, places in lists and tuples int.
Path = Sequence[Union[str, int]]


def input_names(paths: Sequence[Path]) -> List[str]:
    """The names of arguments. The trees are `(positional arguments, arguments by name)`."""
    # Which argument it is says nothing of a name.
    return _names([path[2:] if path[0] == 0 else path[1:] for path in paths], "INPUT")


def output_names(paths: Sequence[Path]) -> List[str]:
    """The names of results."""
    return _names(paths, "OUTPUT")


def _names(paths: Sequence[Path], prefix: str) -> List[str]:
    by_place = [f"{prefix}__{place}" for place in range(len(paths))]
    names = [
        ".".join(map(str, path)) if path and all(isinstance(key, str) for key in path) else name
        for path, name in zip(paths, by_place)
    ]
    return names if len(set(names)) == len(names) else by_place

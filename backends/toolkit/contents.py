# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What a model file has besides its tensors: the operations that it executes, and the files that belong to it. (pure)

A backend describes these in `read_contents(path)` of its module `contents`, without its framework, so that the custom
operations of a model are known before there is a library that has them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List


@dataclass
class Contents:
    """`operations` counts the nodes of each operation; `custom` names those that the framework does not have itself.

    `companions` are the other files of the model, its weights for instance: their paths relative to its folder, and the
    ones that they need beside a file with the stem `model`.
    `arguments` are the names of the inputs, as far as a file tells them that does not tell their datatypes; those of
    `optional` may be left out.
    """

    operations: Dict[str, int] = field(default_factory=dict)
    custom: List[str] = field(default_factory=list)
    companions: Dict[str, str] = field(default_factory=dict)
    arguments: List[str] = field(default_factory=list)
    optional: List[str] = field(default_factory=list)

    def add(self, name: str, is_custom: bool) -> None:
        """Count one node."""
        self.operations[name] = self.operations.get(name, 0) + 1
        if is_custom and name not in self.custom:
            self.custom.append(name)

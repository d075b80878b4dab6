# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parses the `# /// script` block of a Python file, which declares its dependencies (PEP 723). (pure)

block := "# /// script" NL ("#" | "# " any-text) NL ... "# ///" NL

The text within is TOML. Only `dependencies` and `requires-python` are read; a block may have tables for other tools.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass

from pyruntime.utils.errors import LoadError

# The expression comes from the PEP.
_BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
EXAMPLE = '# /// script\n# dependencies = ["scipy"]\n# ///'


@dataclass(frozen=True, slots=True)
class ScriptMetadata:
    """The requirements of a script, and its version specifier for Python, "" for any."""

    dependencies: tuple[str, ...]
    requires_python: str


def parse_script(text: str, path: str) -> ScriptMetadata:
    """Read the block of a script; `path` is for messages. Raises LoadError if there is none or it is malformed."""
    blocks = [match for match in _BLOCK.finditer(text) if match["type"] == "script"]
    if not blocks:
        raise LoadError(
            f"'{path}' has no `# /// script` block that says what it needs; one looks like this, near the top of the"
            f" file:\n{EXAMPLE}"
        )
    if len(blocks) > 1:
        raise LoadError(f"'{path}' has {len(blocks)} `# /// script` blocks, where there can be one")
    lines = blocks[0]["content"].splitlines()
    try:
        table = tomllib.loads("\n".join(line[2:] for line in lines))
    except tomllib.TOMLDecodeError as exc:
        raise LoadError(f"the `# /// script` block of '{path}' is not TOML: {exc}") from exc
    dependencies = table.get("dependencies", [])
    requires_python = table.get("requires-python", "")
    if not isinstance(requires_python, str):
        raise LoadError(f"requires-python of '{path}' is {requires_python!r}, and should be text such as \">=3.10\"")
    if not isinstance(dependencies, list) or not all(map(_is_requirement, dependencies)):
        raise LoadError(
            f"dependencies of '{path}' is {dependencies!r}, and should be a list of requirements such as"
            ' ["scipy>=1.10"]'
        )
    return ScriptMetadata(tuple(dependencies), requires_python.strip())


def _is_requirement(value: object) -> bool:
    # They become arguments of uv or pip, where a dash begins an option.
    return isinstance(value, str) and value.strip() != "" and "\n" not in value and not value.lstrip().startswith("-")

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The types of JSON documents, as orjson parses them and writes them. (pure)

Both are made of `list` and `dict`, not of `Sequence` and `Mapping`, so that one `isinstance` narrows a value.
"""

from __future__ import annotations

from typing import TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = dict[str, JsonValue]

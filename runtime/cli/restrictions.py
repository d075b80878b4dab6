# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parses `--http-restricted-api` and `--grpc-restricted-protocol`: `<api>[,<api>...]:<header>=<value>`. (pure)"""

from __future__ import annotations

from pyruntime.runtime.cli.parse import Value
from pyruntime.runtime.settings import Restriction, SettingsError

# Triton's names of the groups of endpoints that can be restricted.
APIS = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)


def read_restrictions(option: str, texts: Value, prefix: str = "") -> dict[str, Restriction]:
    """The restriction of each API that `texts` name. `prefix` precedes the header's name.

    Raises SettingsError for any other form, for an unknown API, and for an API that is named twice.
    """
    assert isinstance(texts, list)
    restrictions: dict[str, Restriction] = {}
    for text in texts:
        apis, colon, access = text.partition(":")
        header, equals, value = access.partition("=")
        if not colon or not equals or not header:
            raise SettingsError(f"--{option} needs <api>[,<api>...]:<header>=<value>, not {text!r}")
        for api in apis.split(","):
            if api not in APIS:
                raise SettingsError(f"unknown restricted api '{api}'; those there are: {', '.join(APIS)}")
            if api in restrictions:
                raise SettingsError(f"api '{api}' can not be specified in multiple config groups")
            restrictions[api] = Restriction(prefix + header.lower(), value)
    return restrictions

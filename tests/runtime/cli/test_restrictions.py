# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""--http-restricted-api and --grpc-restricted-protocol."""

import pytest

from pyruntime.runtime.cli.restrictions import APIS, read_restrictions
from pyruntime.runtime.settings import Restriction, SettingsError

OPTION = "http-restricted-api"


def refusal(*texts):
    with pytest.raises(SettingsError) as caught:
        read_restrictions(OPTION, list(texts))
    return str(caught.value)


def test_nothing_is_restricted():
    """Without the option every API is open."""
    assert read_restrictions(OPTION, []) == {}


@pytest.mark.parametrize("api", APIS)
def test_every_api(api):
    """Each has a name of its own."""
    assert read_restrictions(OPTION, [f"{api}:key=value"]) == {api: Restriction("key", "value")}


def test_groups():
    """One option restricts several APIs alike; several options, each its own."""
    found = read_restrictions(OPTION, ["health,metadata:a=1", "inference:b=2"])
    assert found == {
        "health": Restriction("a", "1"), "metadata": Restriction("a", "1"), "inference": Restriction("b", "2")
    }  # fmt: skip


def test_headers_name():
    """Its case does not matter, as in HTTP; that of its value does. gRPC has something before the name."""
    text = "health:Admin-Key=Se=cret:1"
    assert read_restrictions(OPTION, [text]) == {"health": Restriction("admin-key", "Se=cret:1")}
    assert read_restrictions(OPTION, [text], "triton-grpc-protocol-") == {
        "health": Restriction("triton-grpc-protocol-admin-key", "Se=cret:1")
    }


def test_empty_value():
    """A header that must be present and empty is odd, but allowed."""
    assert read_restrictions(OPTION, ["health:key="]) == {"health": Restriction("key", "")}


@pytest.mark.parametrize("text", ["", "health", "health:", "health:key", "health:=value", "health=value"])
def test_other_forms(text):
    """A restriction with a missing part is refused with the expected form."""
    assert refusal(text) == f"--{OPTION} needs <api>[,<api>...]:<header>=<value>, not {text!r}"


@pytest.mark.parametrize("text", ["foo:k=v", "health,foo:k=v"])
def test_unknown_api(text):
    """An unknown API is refused with Triton's message and a list of the APIs."""
    assert refusal(text) == f"unknown restricted api 'foo'; those there are: {', '.join(APIS)}"


@pytest.mark.parametrize("texts", [("health:a=1", "health:a=1"), ("metadata,health:a=1", "health:b=2")])
def test_api_named_twice(texts):
    """Triton's words."""
    assert refusal(*texts) == "api 'health' can not be specified in multiple config groups"

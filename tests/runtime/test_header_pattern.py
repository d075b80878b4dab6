# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from pyruntime.runtime.header_pattern import NAME_LENGTH_MAX, NAMES_KEPT_MAX, HeaderPattern
from pyruntime.runtime.settings import ServerSettings, SettingsError

HEADERS = (("X-Tenant", "a"), ("host", "b"), ("my-x-tenant", "c"))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("", []),
        ("x-tenant", ["X-Tenant", "my-x-tenant"]),
        ("^X-", ["X-Tenant"]),
        ("(?-i:x-)", ["my-x-tenant"]),
        ("(?-i)X-.*", ["X-Tenant"]),
        ("x-(?-i)Tenant", ["X-Tenant"]),
        (r"\pL{4}$", ["X-Tenant", "host", "my-x-tenant"]),
        ("^[[:lower:]]+$", ["host"]),
        (r"\Ahost\z", ["host"]),
        (r"\Qx-\E", ["X-Tenant", "my-x-tenant"]),
        ("^(host|nobody)$", ["host"]),
        (".*", ["X-Tenant", "host", "my-x-tenant"]),
    ],
)
def test_pattern(pattern, names):
    """A pattern finds itself in any part of a name, in any case."""
    assert [name for name, _ in HeaderPattern(pattern).select(HEADERS)] == names


def test_names_that_are_too_long():
    """No time is spent on them."""
    pattern = HeaderPattern("x")
    assert pattern.select([("x" * NAME_LENGTH_MAX, NAMES_KEPT_MAX, ""), ("x" * (NAME_LENGTH_MAX + 1), "")]) == (
        ("x" * NAME_LENGTH_MAX, NAMES_KEPT_MAX, ""),
    )


def test_names_that_are_remembered():
    """Their number is limited, and names that come again are forwarded as before."""
    pattern = HeaderPattern("[05]$")
    headers = [(f"x-{number}", "") for number in range(2 * NAMES_KEPT_MAX)]
    wanted = tuple(each for each in headers if each[0][-1] in "05")
    assert [pattern.select(headers), pattern.select(headers)] == [wanted, wanted]
    assert len(pattern._matches) <= NAMES_KEPT_MAX


def test_repr():
    """It shows the pattern."""
    assert repr(HeaderPattern("x-.*")) == "<HeaderPattern 'x-.*'>"


@pytest.mark.parametrize("option", ["http_header_forward_pattern", "grpc_header_forward_pattern"])
@pytest.mark.parametrize(
    ("pattern", "reason"), [("(", "missing ): ("), ("x(?=a)", "invalid perl operator: (?="), ("é[", "missing ]: [")]
)
def test_what_is_no_pattern(option, pattern, reason):
    """A server with such a pattern does not start; what only Python's expressions have is no pattern."""
    with pytest.raises(SettingsError) as caught:
        ServerSettings(("/models",), **{option: pattern})
    name = f"--{option.replace('_', '-')}"
    assert str(caught.value) == f"{name} must be a regular expression of RE2, unlike {pattern!r}: {reason}"

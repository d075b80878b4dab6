# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from pyruntime.runtime.tracing.settings import without_credentials


@pytest.mark.parametrize(
    ("url", "shown", "credentials"),
    [
        ("localhost:4318/v1/traces", "http://localhost:4318/v1/traces", ""),
        ("https://a.b/c?d=e", "https://a.b/c?d=e", ""),
        ("https://user:p%40ss@a.b:1/c", "https://a.b:1/c", "user:p%40ss"),
        ("user@[::1]:4318", "http://[::1]:4318", "user"),
    ],
)
def test_credentials(url, shown, credentials):
    """A password is for the collector, and for nobody else to see."""
    assert without_credentials(url) == (shown, credentials)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from pyruntime.runtime.tracing.traceparent import Parent, format_traceparent, parse_traceparent

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f" 00-{TRACE}-{SPAN}-02\t", False),
        (f"cc-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-later-versions-say", True),
    ],
)
def test_parent(text, sampled):
    """A later version may say more; of the flags only one means anything."""
    assert parse_traceparent(text) == Parent(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "junk",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01",
    ],
)
def test_no_parent(text):
    """A value that the recommendation calls invalid is ignored."""
    assert parse_traceparent(text) is None


def test_round():
    """The header that we send is read as a parent that is recorded."""
    assert format_traceparent(TRACE, SPAN) == f"00-{TRACE}-{SPAN}-01"
    assert parse_traceparent(format_traceparent(TRACE, SPAN)) == Parent(TRACE, SPAN, True)

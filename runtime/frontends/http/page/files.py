# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The files of the page, read once, by the names that the table of routes has for them.

Their headers restrict browsers: scripts, images and connections of this server only, and no frame of another site may
show the page.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from pyruntime.runtime.frontends.http.routes import PAGE_FILES

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = (
    f"Content-Security-Policy: {_POLICY}\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    # Another version of the server may have another page.
    "Cache-Control: no-cache\r\n"
)


class PageFile(NamedTuple):
    """One file: what it holds, and the lines about it in a response's head."""

    contents: bytes
    head_lines: bytes


@cache
def page_files() -> dict[str, PageFile]:
    """All files of the page, by name."""
    folder = Path(__file__).parent
    return {name: PageFile(folder.joinpath(name).read_bytes(), _head_lines(name)) for name in PAGE_FILES}


def _head_lines(name: str) -> bytes:
    return f"Content-Type: {_TYPES[name.rpartition('.')[2]]}; charset=utf-8\r\n{_HEADERS}".encode()

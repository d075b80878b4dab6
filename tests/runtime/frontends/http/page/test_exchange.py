# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The page and the document over connections that note written data: see conftest.py."""

import json
import re
from pathlib import Path

import pytest

from pyruntime.runtime.frontends.http.openapi.document import openapi_document
from pyruntime.runtime.frontends.http.page import exchange, files
from pyruntime.runtime.frontends.http.page.files import page_files
from pyruntime.runtime.frontends.http.routes import PAGE_FILES

SOURCE = Path(files.__file__).parent
TYPES = {".html": "text/html", ".css": "text/css", ".svg": "image/svg+xml", ".js": "text/javascript"}


def get(server, path):
    transport = server.connect()
    transport.feed(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
    (answer,) = transport.responses()
    assert server.is_idle()
    return answer


@pytest.mark.parametrize("name", PAGE_FILES)
def test_files(server, name):
    """Each file is served as in the package, with its type and security headers."""
    path = {"index.html": "/", "docs.html": "/docs"}.get(name, f"/page/{name}")
    status, headers, body = get(server, path)
    assert (status, body) == (200, (SOURCE / name).read_bytes())
    assert headers["content-type"] == f"{TYPES[Path(name).suffix]}; charset=utf-8"
    policy = headers["content-security-policy"].split("; ")
    assert policy[0] == "default-src 'none'"
    assert {source for directive in policy for source in directive.split()[1:]} == {"'none'", "'self'"}
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_table_is_complete():
    """All files beside the code are served, and no others."""
    assert set(page_files()) == {path.name for path in SOURCE.iterdir() if path.suffix in TYPES}


@pytest.mark.parametrize(
    "path", ["/page", "/page/", "/page/files.py", "/page/index.html", "/page/../app.js", "/page/%61pp.js"]
)
def test_what_is_no_file(server, path):
    """No path of a client's is ever one of the file system."""
    assert get(server, path)[0] == 404


def test_files_ask_nobody_else():
    """The page refers to nothing elsewhere, and makes no markup of strings."""
    for name, file in page_files().items():
        text = file.contents.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//[a-z]+\.", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function| style=", text), (
            name
        )
        assert "SPDX-License-Identifier: Apache-2.0" in text


def test_document(server, monkeypatch):
    """It is about the models that serve, and made anew only when that changes."""
    made = []
    monkeypatch.setattr(exchange, "openapi_document", lambda *what: made.append(what) or openapi_document(*what))
    status, headers, first = get(server, "/openapi.json")
    assert (status, headers["content-type"]) == (200, "application/json")
    assert {"/v2/models/m/infer", "/v2/models/d/generate"} <= set(json.loads(first)["paths"])
    transport = server.connect()
    transport.feed(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
    assert transport.responses()[0][2] == first
    assert len(made) == 1
    server.state.table.begin_unload("d", 1)
    second = json.loads(get(server, "/openapi.json")[2])
    assert "/v2/models/m/infer" in second["paths"]
    assert "/v2/models/d/generate" not in second["paths"]

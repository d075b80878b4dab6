# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.frontends.http import routes
from pyruntime.runtime.frontends.http.routes import (
    CUDA_REGION_UNNAMED,
    NOT_FOUND,
    REPOSITORY_NAMED,
    SYSTEM_REGION_UNNAMED,
    URL_BYTES_MAX,
    URL_TOO_LONG,
    Endpoint,
    Route,
    match,
    match_metrics,
    not_allowed,
)
from pyruntime.runtime.repository.versions import VERSION_MAX

GOOD = [
    ("GET", b"/v2", Route(Endpoint.SERVER_METADATA)),
    ("GET", b"/v2/health/live", Route(Endpoint.SERVER_LIVE)),
    ("GET", b"/v2/health/ready", Route(Endpoint.SERVER_READY)),
    ("GET", b"/v2/models/stats", Route(Endpoint.ALL_STATISTICS)),
    ("GET", b"/v2/models/m", Route(Endpoint.MODEL_METADATA, "m")),
    ("GET", b"/v2/models/m/ready", Route(Endpoint.MODEL_READY, "m")),
    ("GET", b"/v2/models/m/config", Route(Endpoint.MODEL_CONFIG, "m")),
    ("GET", b"/v2/models/m/stats", Route(Endpoint.MODEL_STATISTICS, "m")),
    ("POST", b"/v2/models/m/infer", Route(Endpoint.MODEL_INFER, "m")),
    ("POST", b"/v2/models/m/generate", Route(Endpoint.MODEL_GENERATE, "m")),
    ("POST", b"/v2/models/m/generate_stream", Route(Endpoint.MODEL_GENERATE_STREAM, "m")),
    ("GET", b"/v2/models/m/versions/3", Route(Endpoint.MODEL_METADATA, "m", 3)),
    ("GET", b"/v2/models/m/versions/3/ready", Route(Endpoint.MODEL_READY, "m", 3)),
    ("GET", b"/v2/models/m/versions/3/config", Route(Endpoint.MODEL_CONFIG, "m", 3)),
    ("GET", b"/v2/models/m/versions/3/stats", Route(Endpoint.MODEL_STATISTICS, "m", 3)),
    ("POST", b"/v2/models/m/versions/3/infer", Route(Endpoint.MODEL_INFER, "m", 3)),
    ("POST", b"/v2/models/m/versions/3/generate", Route(Endpoint.MODEL_GENERATE, "m", 3)),
    ("POST", b"/v2/models/m/versions/3/generate_stream", Route(Endpoint.MODEL_GENERATE_STREAM, "m", 3)),
    ("GET", b"/", Route(Endpoint.PAGE, file="index.html")),
    ("GET", b"/page/app.js", Route(Endpoint.PAGE, file="app.js")),
    ("GET", b"/docs", Route(Endpoint.PAGE, file="docs.html")),
    ("POST", b"/page/watch", Route(Endpoint.PAGE_WATCH)),
    ("POST", b"/page/stacks", Route(Endpoint.PAGE_STACKS)),
    ("GET", b"/openapi.json", Route(Endpoint.OPENAPI)),
    ("POST", b"/v2/repository/index", Route(Endpoint.REPOSITORY_INDEX)),
    ("POST", b"/v2/repository/models/m/load", Route(Endpoint.MODEL_LOAD, "m")),
    ("POST", b"/v2/repository/models/m/unload", Route(Endpoint.MODEL_UNLOAD, "m")),
    ("GET", b"/v2/systemsharedmemory/status", Route(Endpoint.SYSTEM_MEMORY_STATUS)),
    ("GET", b"/v2/systemsharedmemory/region/r/status", Route(Endpoint.SYSTEM_MEMORY_STATUS, region="r")),
    ("POST", b"/v2/systemsharedmemory/region/r/register", Route(Endpoint.SYSTEM_MEMORY_REGISTER, region="r")),
    ("POST", b"/v2/systemsharedmemory/unregister", Route(Endpoint.SYSTEM_MEMORY_UNREGISTER)),
    ("POST", b"/v2/systemsharedmemory/region/r/unregister", Route(Endpoint.SYSTEM_MEMORY_UNREGISTER, region="r")),
    ("GET", b"/v2/cudasharedmemory/status", Route(Endpoint.CUDA_MEMORY_STATUS)),
    ("GET", b"/v2/cudasharedmemory/region/r/status", Route(Endpoint.CUDA_MEMORY_STATUS, region="r")),
    ("POST", b"/v2/cudasharedmemory/region/r/register", Route(Endpoint.CUDA_MEMORY_REGISTER, region="r")),
    ("POST", b"/v2/cudasharedmemory/unregister", Route(Endpoint.CUDA_MEMORY_UNREGISTER)),
    ("POST", b"/v2/cudasharedmemory/region/r/unregister", Route(Endpoint.CUDA_MEMORY_UNREGISTER, region="r")),
    ("GET", b"/v2/models/stats/ready", Route(Endpoint.MODEL_READY, "stats")),
    ("GET", b"/v2/models/stats/stats", Route(Endpoint.MODEL_STATISTICS, "stats")),
    ("POST", b"/v2/models/infer/infer", Route(Endpoint.MODEL_INFER, "infer")),
    ("GET", b"/v2/models/versions", Route(Endpoint.MODEL_METADATA, "versions")),
]


# Settings, which are read with one verb and changed with the other.
SETTINGS = [
    (b"/v2/trace/setting", Route(Endpoint.TRACE_SETTING), Route(Endpoint.UPDATE_TRACE_SETTING)),
    (b"/v2/models/m/trace/setting", Route(Endpoint.TRACE_SETTING, "m"), Route(Endpoint.UPDATE_TRACE_SETTING, "m")),
    (b"/v2/logging", Route(Endpoint.LOG_SETTINGS), Route(Endpoint.UPDATE_LOG_SETTINGS)),
]


@pytest.mark.parametrize(("method", "target", "route"), GOOD)
def test_every_endpoint(method, target, route):
    """Each URL leads to its endpoint; a query string changes nothing."""
    assert match(method, target) == route
    assert match(method, target + b"?a=/v2") == route
    assert match(method, b"http://any:8000" + target) == route


@pytest.mark.parametrize(("target", "read", "change"), SETTINGS)
def test_settings(target, read, change):
    """Settings are read with GET and changed with POST."""
    assert (match("GET", target), match("POST", target)) == (read, change)
    assert match("DELETE", target) == not_allowed("GET", "POST")


def test_servers_without_a_path():
    """A server's own name is as good as the first of all paths."""
    assert match("GET", b"http://any") == match("GET", b"HTTPS://any/") == match("GET", b"/")
    assert match("GET", b"http://any/v3") is match("GET", b"ftp://any/v2") is NOT_FOUND


@pytest.mark.parametrize(("method", "target", "route"), GOOD)
def test_wrong_verbs(method, target, route):
    """An endpoint answers to its own verb only."""
    for verb in {"GET", "POST", "PUT", "DELETE", "get"} - {method}:
        assert match(verb, target) == Route(Endpoint.REFUSED, status=405, error="Method Not Allowed", allow=method)


@pytest.mark.parametrize("target", [target for _, target, _ in GOOD])
def test_head(target):
    """HEAD is refused, with a response that has no body."""
    route = match("HEAD", target)
    assert route == Route(Endpoint.REFUSED, status=405, allow=route.allow)
    assert route.allow in ("GET", "POST", "GET, POST")
    assert match("HEAD", b"/nowhere") == Route(Endpoint.REFUSED, status=404)


@pytest.mark.parametrize(
    "target",
    [
        b"",
        b"v2",
        b"/v1",
        b"/v2/",
        b"//v2",
        b"/v2/health",
        b"/v2/health/live/",
        b"/v2/models",
        b"/v2/models/",
        b"/v2/models//ready",
        b"/v2/models/m/",
        b"/v2/models/m/infer/",
        b"/v2/models/m/generate/",
        b"/v2/models/m/generate_streams",
        b"/v2/models/m/ready/ready",
        b"/v2/models/m/versions",
        b"/v2/models/m/versions/",
        b"/v2/models/m/versions//infer",
        b"/v2/models/m/versions/1/versions/1",
        b"/v2/models/m/versions/x/generates",
        b"/v2/models/m%2Finfer/x",
        b"/v2/repository",
        b"/v2/repository/r",
        b"/v2/repository//index",
        b"/v2/repository/r/x/index",
        b"/v2/repository/models",
        b"/v2/repository/models/m",
        b"/v2/repository/models//load",
        b"/v2/repository/models/m/loads",
        b"/v2/repository/r/x/models/m/load",
        b"/v2/repository//models/m/load",
        b"/v2/models/m/versions/1/trace/setting",
        b"/v2/models/m/trace",
        b"/v2/systemsharedmemory",
        b"/v2/systemsharedmemory/region",
        b"/v2/systemsharedmemory/region/r",
        b"/v2/systemsharedmemory/region//status",
        b"/v2/systemsharedregions/r/status",
        b"/v2/sharedmemory/region/r/status",
        b"/v2/logging/",
        b"/%76%32",
        b"\xff\x00",
    ],
)
def test_anything_else_is_not_found(target):
    """Any other path is not found, for every method."""
    assert Route(Endpoint.REFUSED, status=404, error="Not Found") == NOT_FOUND
    assert match("GET", target)._replace(error=NOT_FOUND.error) == NOT_FOUND
    assert match("POST", target)._replace(error=NOT_FOUND.error) == NOT_FOUND


def test_a_repository_cannot_be_named():
    """One repository is refused in Triton's own words."""
    assert (REPOSITORY_NAMED.status, REPOSITORY_NAMED.error) == (
        501,
        "'repository_name' specification is not supported",
    )
    for path in (b"/v2/repository/r/index", b"/v2/repository/r/models/m/load", b"/v2/repository/r/models/m/unload"):
        assert match("POST", path) is REPOSITORY_NAMED
        assert match("GET", path) == not_allowed("POST")


def test_a_region_must_be_named():
    """Memory without a name cannot be registered, and that is said in Triton's own words."""
    assert match("POST", b"/v2/systemsharedmemory/register") is SYSTEM_REGION_UNNAMED
    assert match("POST", b"/v2/cudasharedmemory/register") is CUDA_REGION_UNNAMED
    assert match("GET", b"/v2/cudasharedmemory/register") == not_allowed("POST")
    for route, kind in ((SYSTEM_REGION_UNNAMED, "system"), (CUDA_REGION_UNNAMED, "cuda")):
        assert route.status == 400
        assert route.error == f"'region name' is necessary to register {kind} shared memory region"


@pytest.mark.parametrize(
    ("segment", "name"),
    [
        (b"my%20model", "my model"),
        (b"a+b", "a+b"),
        (b"%C3%A9", "é"),
        (b"\xc3\xa9", "é"),
        (b"a%2Fb", "a/b"),
        (b"%2E%2E%2Fetc", "../etc"),
        (b"..", ".."),
        (b"a%00b", "a\0b"),
        (b"100%", "100%"),
        (b"%FF", "\ufffd"),
        (b"m%3Fx", "m?x"),
    ],
)
def test_names_are_decoded_after_routing(segment, name):
    """A name is decoded after routing: an encoded slash is part of the name."""
    assert match("GET", b"/v2/models/" + segment + b"/config") == Route(Endpoint.MODEL_CONFIG, name)


@pytest.mark.parametrize(
    "version",
    ["0", "00", str(VERSION_MAX + 1), "1" * 20, "1" * 4000],
    ids=["0", "00", "too large", "too long", "very long"],
)
def test_versions_that_are_none(version):
    """A version is an integer above 0, in Triton's words."""
    target = f"/v2/models/m/versions/{version}"
    details = " (details: stol)" if len(version) > 2 else ""
    assert match("GET", target.encode()) == Route(
        Endpoint.REFUSED,
        status=400,
        error=f"failed to get model version from specified version string '{version[:64]}'{details}, "
        "version should be an integral value > 0",
    )
    assert match("POST", target.encode()) == not_allowed("GET")


@pytest.mark.parametrize("version", ["-1", "+1", "1.0", "abc", "1 ", "\uff19"], ids=ascii)
def test_versions_that_are_no_digits(version):
    """They make another path, as in Triton."""
    for method in ("GET", "POST"):
        assert match(method, f"/v2/models/m/versions/{version}".encode()) is NOT_FOUND


@pytest.mark.parametrize(("digits", "version"), [(b"1", 1), (b"007", 7), (str(VERSION_MAX).encode(), VERSION_MAX)])
def test_versions(digits, version):
    """Versions go up to the greatest that Triton has."""
    assert match("POST", b"/v2/models/m/versions/" + digits + b"/infer").version == version


def test_long_urls():
    """A URL may be as long as the limit and no longer."""
    longest = b"/v2/models/".ljust(URL_BYTES_MAX, b"m")
    assert match("GET", longest).endpoint is Endpoint.MODEL_METADATA
    assert match("GET", longest + b"m") is URL_TOO_LONG
    assert URL_TOO_LONG.status == 414


@pytest.mark.parametrize("target", [b"/metrics", b"/metrics/", b"/metrics?a=b", b"/metrics/?"])
def test_metrics(target):
    """The metrics port has one page, which no other port has."""
    assert match_metrics("GET", target) == Route(Endpoint.METRICS)
    assert match("GET", target) is NOT_FOUND


@given(st.sampled_from(["GET", "POST", "HEAD", ""]), st.binary())
def test_metrics_port(method, target):
    """Everything else there is nothing, or refused for its method, or for its length."""
    route = match_metrics(method, target)
    if method == "GET":
        assert route.status == 200
        assert route.endpoint in (Endpoint.METRICS, Endpoint.NOTHING)
    else:
        assert route == not_allowed("GET")._replace(error="" if method == "HEAD" else "Method Not Allowed")
    assert match_metrics(method, b"/".ljust(URL_BYTES_MAX + 1, b"a")) is URL_TOO_LONG


@given(
    st.text(), st.binary() | st.lists(st.sampled_from([b"/", b"v2", b"models", b"versions", b"1", b"%"])).map(b"".join)
)
def test_any_request_line(method, target):
    """Any request line has a route, and only refused ones have an error."""
    route = match(method, target)
    assert (route.endpoint is Endpoint.REFUSED) == (route.status != 200)
    assert bool(route.error) == (route.status != 200 and method != "HEAD")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        (b"/v2/model/m/infer", "/v2/models/m/infer"),
        (b"/models/m/infer", "/v2/models/m/infer"),
        (b"/v2/models/m/infer/", "/v2/models/m/infer"),
        (b"/v2/models/m/versions/1/generate_strem", "/v2/models/m/versions/1/generate_stream"),
        (b"/v2/repository/models/m/lod", "/v2/repository/models/m/load"),
        (b"/health/ready", "/v2/health/ready"),
    ],
)
def test_suggestions(path, meant):
    """A path that is almost another one is refused with a question after that one, in which names stay as they are."""
    assert match("GET", path) == NOT_FOUND._replace(error=f"Not Found; did you mean {meant}?")
    assert match("HEAD", path) == NOT_FOUND._replace(error="")


@pytest.mark.parametrize(
    "path", [b"/favicon.ico", b"/" * 9, b"v2", b"/v2/mdels/\xc3\xa4", b"/v2/mdels/\x1b", b"/v2/models//infr"]
)
def test_no_suggestions(path):
    """Nothing is like other paths, or has what a model's name cannot have."""
    assert match("GET", path) == NOT_FOUND


def test_suggested_paths_exist():
    """Each path that may be suggested is one that some method has."""
    for shown in routes._SHOWN:
        path = "/" + "/".join("1" if word == "*" else word for word in shown)
        assert {"GET", "POST"} & {method for method in ("GET", "POST") if match(method, path.encode()).status != 404}

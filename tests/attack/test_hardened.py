# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The hardened configuration of SECURITY.md is accepted, and has the promised effects."""

import json
import re
import ssl
from contextlib import closing, suppress
from http.client import HTTPSConnection
from pathlib import Path

import grpc
import pytest
import tritonclient.grpc
import trustme
from tritonclient.utils import InferenceServerException

from ..e2e.harness.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
ADMIN = "admin-key"
BODY = {"inputs": [{"name": "IN", "datatype": "INT64", "shape": [1], "data": [7]}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that the configuration names in /etc/pyruntime, and a client's certificate."""
    folder = tmp_path_factory.mktemp("hardened")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "clients.pem"))
    server, client = authority.issue_cert("localhost"), authority.issue_cert("client@example.org")
    server.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    server.private_key_pem.write_to_path(str(folder / "key.pem"))
    client.private_key_and_cert_chain_pem.write_to_path(str(folder / "client.pem"))
    return folder


@pytest.fixture(scope="module")
def server(start_target, folder):
    """A server with that configuration."""
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE | re.DOTALL)
    text = text.replace("/etc/pyruntime", str(folder)).replace("/var/log/pyruntime", str(folder))
    lines = [line for line in text.splitlines() if not line.startswith("model-repository:")]
    config = folder / "server.yaml"
    config.write_text("\n".join(lines))
    with start_target(f"--config={config}", ready=False) as server:
        wait_until(lambda: server.process.poll() is not None or ask(server, folder, "GET", "/v2/health/ready") == 200)
        yield server


def context(folder, with_certificate=True):
    """The TLS context of a client."""
    found = ssl.create_default_context(cafile=folder / "clients.pem")
    if with_certificate:
        found.load_cert_chain(folder / "client.pem")
    return found


def ask(server, folder, method, path, body=None, with_certificate=True, **headers):
    """The status of an answer; None if the server does not even speak to the client."""
    trust = context(folder, with_certificate)
    with (
        suppress(OSError),
        closing(HTTPSConnection("localhost", server.port, timeout=LIMIT_S, context=trust)) as client,
    ):
        client.request(method, path, None if body is None else json.dumps(body), headers)
        return client.getresponse().status
    return None


def test_clients_need_a_certificate(server, folder):
    """Over HTTP."""
    assert ask(server, folder, "POST", "/v2/models/numbers/infer", BODY) == 200
    assert ask(server, folder, "POST", "/v2/models/numbers/infer", BODY, with_certificate=False) is None


def test_clients_of_grpc_need_a_certificate(server, folder):
    """Operations need a header besides the certificate."""
    root = (folder / "clients.pem").read_bytes()
    pair = (folder / "client.pem").read_bytes()
    for credentials, is_admitted in [
        (grpc.ssl_channel_credentials(root, pair, pair), True),
        (grpc.ssl_channel_credentials(root), False),
    ]:
        options = {"creds": credentials}
        with closing(tritonclient.grpc.InferenceServerClient(f"localhost:{server.grpc_port}", **options)) as client:
            if not is_admitted:
                with pytest.raises(InferenceServerException):
                    client.is_server_live(client_timeout=LIMIT_S)
                continue
            assert client.is_server_live(client_timeout=LIMIT_S)
            with pytest.raises(InferenceServerException, match="restricted"):
                client.get_model_repository_index(client_timeout=LIMIT_S)
            secret = {f"triton-grpc-protocol-{ADMIN}": "<secret>"}
            assert client.get_model_repository_index(headers=secret, client_timeout=LIMIT_S).models


@pytest.mark.parametrize(
    "path", ["/v2/repository/index", "/v2/logging", "/v2/trace/setting", "/v2/systemsharedmemory/unregister"]
)
def test_operators_need_a_header(server, folder, path):
    """Even with the header, models cannot be loaded, nor shared memory opened."""
    assert ask(server, folder, "POST", path, {}) == 403
    allowed = {ADMIN: "<secret>"}
    assert ask(server, folder, "POST", path, {}, **allowed) == (501 if "memory" in path else 200)
    assert ask(server, folder, "POST", "/v2/repository/models/numbers/unload", {}, **allowed) == 503


def test_large_bodies_are_refused(server, folder):
    """Above the limit of the configuration."""
    large = {"inputs": [{**BODY["inputs"][0], "parameters": {"x": "x" * (16 << 20)}}]}
    assert ask(server, folder, "POST", "/v2/models/numbers/infer", large) in (400, None)

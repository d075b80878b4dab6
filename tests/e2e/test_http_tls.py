# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP over TLS, by Triton's client, curl and bare sockets: certificates of both sides, and large bodies both ways."""

import http.client
import json
import socket
import ssl
import subprocess
from contextlib import closing

import gevent.ssl
import numpy as np
import pytest
import tritonclient.http
import trustme

from .harness.models import COUNT, ECHO
from .harness.waiting import LIMIT_S


def trusting(certificates, with_certificate=False):
    context = ssl.create_default_context(cafile=certificates / "root.pem")
    if with_certificate:
        context.load_cert_chain(certificates / "client.pem", certificates / "client-key.pem")
    return context


def ready(server, context):
    """Whether the server says so to a client with this context; False where it does not even speak to it."""
    try:
        with closing(http.client.HTTPSConnection("localhost", server.port, timeout=LIMIT_S, context=context)) as client:
            client.request("GET", "/v2/health/ready")
            return client.getresponse().status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving, certificates, wait_until):
    repository = tmp_path_factory.mktemp("tls")
    write_model(repository, "identity", ECHO)
    write_model(repository, "stream", COUNT, more="model_transaction_policy { decoupled: true }")
    options = ["--http-use-ssl=true", f"--http-server-cert={certificates / 'cert.pem'}"]
    with serving(repository, *options, f"--http-server-key={certificates / 'key.pem'}", ready=False) as server:
        wait_until(lambda: ready(server, trusting(certificates)))
        yield server


@pytest.fixture
def client(server, certificates):
    def context():
        return gevent.ssl.create_default_context(cafile=str(certificates / "root.pem"))

    with closing(
        tritonclient.http.InferenceServerClient(
            f"localhost:{server.port}",
            ssl=True,
            ssl_context_factory=context,
            connection_timeout=LIMIT_S,
            network_timeout=LIMIT_S,
        )
    ) as client:
        yield client


def test_client(client):
    """Triton's client gets all it gets without TLS."""
    assert client.is_server_ready()
    assert client.get_model_metadata("identity")["name"] == "identity"
    assert client.get_model_repository_index()


@pytest.mark.parametrize("count", [1, 1000, 1_000_000, 7_000_000])
@pytest.mark.parametrize("binary", [True, False])
def test_bodies(client, count, binary):
    """Small and large ones come in and go out whole."""
    if not binary and count > 1000:
        count = 100_000
    array = np.arange(count)
    tensor = tritonclient.http.InferInput("IN", [count], "INT64").set_data_from_numpy(array, binary_data=binary)
    output = tritonclient.http.InferRequestedOutput("OUT", binary_data=binary)
    for _ in range(2):
        found = client.infer("identity", [tensor], outputs=[output]).as_numpy("OUT")
        assert np.array_equal(found, array)


def test_slow_reader(server, certificates):
    """A large response waits for a client that reads it bit by bit."""
    count = 4_000_000
    text = json.dumps(
        {
            "inputs": [
                {"name": "IN", "shape": [count], "datatype": "INT64", "parameters": {"binary_data_size": 8 * count}}
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    contents = np.arange(count).tobytes()
    lengths = b"Content-Length: %d\r\nInference-Header-Content-Length: %d\r\n" % (len(text) + len(contents), len(text))
    with (
        socket.create_connection(("localhost", server.port), timeout=LIMIT_S) as bare,
        trusting(certificates).wrap_socket(bare, server_hostname="localhost") as sock,
        sock.makefile("rb") as stream,
    ):
        sock.sendall(b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: any\r\n%b\r\n%b%b" % (lengths, text, contents))
        assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
        assert ready(server, trusting(certificates))
        while (line := stream.readline()) != b"\r\n":
            if line.startswith(b"Content-Length"):
                length = int(line.split()[1])
        body = b"".join(stream.read(min(100_000, length - at)) for at in range(0, length, 100_000))
        assert body.endswith(contents)
        sock.sendall(b"GET /v2/health/live HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert stream.read().startswith(b"HTTP/1.1 200 OK\r\n")


def test_stream(server, certificates):
    """Events come one by one."""
    with closing(
        http.client.HTTPSConnection("localhost", server.port, timeout=LIMIT_S, context=trusting(certificates))
    ) as connection:
        connection.request("POST", "/v2/models/stream/generate_stream", json.dumps({"IN": [3]}))
        with connection.getresponse() as response:
            events = [json.loads(line[6:]) for line in response if line.startswith(b"data: ")]
    assert [event["OUT"] for event in events] == [0, 1, 2]


def test_curl(server, certificates):
    """curl works, too; the server only offers HTTP/1.1."""
    url = f"https://localhost:{server.port}/v2"
    command = ["curl", "--silent", "--show-error", "--cacert", certificates / "root.pem", "--max-time", str(LIMIT_S)]
    found = subprocess.run([*command, "--write-out", " %{http_version}", url], capture_output=True, text=True)
    assert found.stderr == ""
    document, _, version = found.stdout.rpartition(" ")
    assert json.loads(document)["name"] == "triton"
    assert version == "1.1"


@pytest.mark.parametrize(
    "words", [b"GET /v2 HTTP/1.1\r\nHost: any\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\0" * 1000]
)
def test_clients_that_do_not_speak_tls(server, certificates, words):
    """Clients without TLS are disconnected, and others are not affected."""
    with server.connect() as sock:
        sock.sendall(words)
        while sock.recv(1 << 16):
            pass
    assert ready(server, trusting(certificates))


def test_clients_that_leave(server, certificates):
    """A client that hangs up in the middle of anything leaves nothing behind."""
    for cut in (0, 20, 60):
        with server.connect() as bare, trusting(certificates).wrap_socket(bare, server_hostname="localhost") as sock:
            sock.sendall(b"POST /v2/models/identity/infer HTTP/1.1\r\nContent-Length: 1000\r\n\r\n"[:cut])
    with server.connect() as sock:
        sock.sendall(b"\x16\x03\x01")
    assert ready(server, trusting(certificates))


def test_mutual(tmp_path, model, serve, certificates, wait_until):
    """With a root for clients only those are served that show a certificate of its."""
    model("identity", ECHO)
    files = {"server-cert": "cert", "server-key": "key", "root-cert": "root"}
    options = [f"--http-{option}={certificates / name}.pem" for option, name in files.items()]
    server = serve("--http-use-ssl-mutual=true", *options, ready=False)
    wait_until(lambda: ready(server, trusting(certificates, with_certificate=True)))
    assert not ready(server, trusting(certificates))
    other = trustme.CA().issue_cert("client@example.org").private_key_and_cert_chain_pem
    stranger = trusting(certificates)
    with other.tempfile() as path:
        stranger.load_cert_chain(path)
    assert not ready(server, stranger)


def test_certificate_that_cannot_be_used(tmp_path, model, serving, certificates):
    """The server says which, and does not start."""
    model("identity", ECHO)
    options = ["--http-use-ssl=true", f"--http-server-cert={tmp_path / 'nowhere'}"]
    with serving(tmp_path, *options, f"--http-server-key={certificates / 'key.pem'}", ready=False) as server:
        assert server.wait_exit() == 1
        assert f"the certificate {tmp_path / 'nowhere'} and its key" in server.log
        assert "Traceback" not in server.log

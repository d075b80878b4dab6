# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import ssl

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from pyruntime.runtime.frontends.common.tls import server_context
from pyruntime.runtime.settings import SettingsError, TlsSettings


@pytest.fixture
def files(tmp_path):
    """The paths of a certificate, its key and the root that signed it; and of files that are none of these."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    paths = {name: str(tmp_path / name) for name in ("cert", "key", "root", "garbage", "encrypted")}
    issued.cert_chain_pems[0].write_to_path(paths["cert"])
    issued.private_key_pem.write_to_path(paths["key"])
    authority.cert_pem.write_to_path(paths["root"])
    (tmp_path / "garbage").write_text("any")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    form = serialization.PrivateFormat.PKCS8
    (tmp_path / "encrypted").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))
    return paths


def shake_hands(server, client):
    """Shake hands in memory; return the TLS version and the ALPN protocol. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    done = [False, False]
    while not all(done):
        for index, end in enumerate(ends):
            try:
                end.do_handshake()
                done[index] = True
            except ssl.SSLWantReadError:
                pass
    return ends[1].version(), ends[1].selected_alpn_protocol()


def client_context(files, *alpn):
    context = ssl.create_default_context(cafile=files["root"])
    context.set_alpn_protocols(alpn)
    return context


def test_certificate(files):
    """Clients that trust the root are served, over the best protocol that both speak."""
    server = server_context(TlsSettings(files["cert"], files["key"]), ["h2", "http/1.1"])
    assert shake_hands(server, client_context(files, "http/1.1", "h2")) == ("TLSv1.3", "h2")
    assert shake_hands(server, client_context(files, "http/1.1")) == ("TLSv1.3", "http/1.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, ssl.create_default_context())


def test_old_versions(files):
    """TLS versions older than 1.2 are refused."""
    server = server_context(TlsSettings(files["cert"], files["key"]), ["h2"])
    assert server.minimum_version is ssl.TLSVersion.TLSv1_2


def test_clients_certificates(files):
    """With a root for clients each needs a certificate that it signed."""
    server = server_context(TlsSettings(files["cert"], files["key"], files["root"]), ["h2"])
    assert server.verify_mode is ssl.CERT_REQUIRED
    client = client_context(files, "h2")
    client.load_cert_chain(files["cert"], files["key"])
    assert shake_hands(server, client)[1] == "h2"


@pytest.mark.parametrize(
    ("cert", "key", "root", "message"),
    [
        ("nowhere", "key", "", "the certificate {cert} and its key {key} cannot be used: No such file or directory"),
        ("garbage", "key", "", "the certificate {cert} and its key {key} cannot be used: "),
        ("cert", "root", "", "the certificate {cert} and its key {key} cannot be used: "),
        ("cert", "encrypted", "", "the key of a certificate must not be encrypted: "),
        ("cert", "key", "nowhere", "the root certificate {root} cannot be used: No such file or directory"),
        ("cert", "key", "garbage", "the root certificate {root} cannot be used: "),
    ],
)
def test_files_that_cannot_be_used(files, cert, key, root, message):
    """The operator reads which file, and why."""
    cert, key, root = (files.get(name, name and f"/{name}") for name in (cert, key, root))
    with pytest.raises(SettingsError) as caught:
        server_context(TlsSettings(cert, key, root), ["h2"])
    assert str(caught.value).startswith(message.format(cert=cert, key=key, root=root))

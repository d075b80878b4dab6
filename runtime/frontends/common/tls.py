# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the certificates of endpoints with TLS, once, when the server starts."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from pyruntime.runtime.settings import SettingsError, TlsSettings


def server_context(tls: TlsSettings, alpn: Sequence[str]) -> ssl.SSLContext:
    """The context of a port with TLS 1.2 or later. `alpn` are the protocols that run over it, the preferred one first.

    Raises SettingsError where a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(list(alpn))
    try:
        context.load_cert_chain(tls.cert, tls.key, password=_no_password)
    except OSError as exc:
        raise SettingsError(f"the certificate {tls.cert} and its key {tls.key} cannot be used: {_reason(exc)}") from exc
    if tls.root_cert:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(tls.root_cert)
        except OSError as exc:
            message = f"the root certificate {tls.root_cert} cannot be used: {_reason(exc)}"
            raise SettingsError(message) from exc
    return context


def _no_password() -> str:
    """Refuse an encrypted key. Without this callback OpenSSL would ask for the password at the terminal."""
    raise SettingsError("the key of a certificate must not be encrypted: there is nobody to ask for its password")


def _reason(exc: OSError) -> str:
    return exc.strerror or str(exc)

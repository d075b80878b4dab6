# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Attacks on a server in bad surroundings: jumping clocks, few descriptors.

Junk for TLS is here because it needs servers of its own.
"""

import os
import re
import ssl
import struct
from contextlib import ExitStack, closing, suppress
from functools import partial
from http.client import HTTPSConnection

import pytest
import trustme

from ..e2e.harness.cgroups import memory_cgroup
from ..e2e.harness.waiting import LIMIT_S, wait_until
from .harness import attacks, crowds, http1, repository
from .harness.bombs import MIB
from .harness.clients import Target
from .harness.instruments import descriptors, used_bytes

pytestmark = pytest.mark.processes

STALL_CPU_S_MAX = 1.0
LEFT_BYTES_MAX = 64 * MIB
DAY_S = 86_400
ATTACKS = {attack.name: attack for attack in attacks.ATTACKS}
# One of each kind.
SOME = ("gRPC: empty bytes_contents", "infer: blanks behind a request", "gzip: 16 bodies of blanks at once")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """(the file of a certificate, that of its key)."""
    folder = tmp_path_factory.mktemp("certificate")
    issued = trustme.CA().issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    return folder / "cert.pem", folder / "key.pem"


def client_hello() -> bytes:
    """The first bytes of a client of TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl._create_unverified_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def tls_junk(target, port, context):
    """Malformed and unfinished handshakes, and connections that send junk after theirs."""
    hello = client_hello()
    alert, change = b"\x15\x03\x03\0\2\2\x28", b"\x14\x03\x03\0\1\1"
    for _ in range(200):
        at = target.random.randrange(len(hello))
        junk = target.random.choice(
            [
                target.random.randbytes(target.random.randrange(1, 600)),
                hello[:at],
                hello[:at] + target.random.randbytes(8) + hello[at:],
                hello + target.random.randbytes(300),
                hello + change * 2000,
                hello + alert * 100,
                b"\x16\x03\x01\xff\xff" + bytes(70_000),
                http1.conversation(target.random),
            ]
        )
        target.bytes_to(port, junk)
        target.hang_up(junk, port)
    with ExitStack() as stack:
        for number in range(300):
            sock = stack.enter_context(target.connect(port))
            sock.sendall(hello[: len(hello) - number % 2])
    for _ in range(30):
        with suppress(OSError), context.wrap_socket(target.connect(port), server_hostname="localhost") as sock:
            sock.sendall(target.random.randbytes(1000))
            os.write(sock.fileno(), target.random.randbytes(1000))
            while sock.recv(1 << 16):
                pass


def test_tls_of_grpc(start_target, run_attack, certificate, seed):
    """Others are served, over HTTP without TLS, while clients of gRPC send junk for TLS."""
    cert, key = certificate
    context = ssl._create_unverified_context()
    context.set_alpn_protocols(["h2"])
    options = ("--grpc-use-ssl=true", f"--grpc-server-cert={cert}", f"--grpc-server-key={key}")
    with start_target(*options) as server:
        # Its models answer over HTTP.
        found = run_attack(
            server,
            "TLS junk to gRPC",
            lambda target: tls_junk(target, server.grpc_port, context),
            check=repository.check_http,
        )
    assert found.failures == 0
    assert found.longest_cpu_s < STALL_CPU_S_MAX


def test_tls_of_http(start_target, certificate, seed):
    """After junk for TLS clients with TLS are answered, and nothing of it is left."""
    cert, key = certificate
    context = ssl._create_unverified_context()
    options = ("--http-use-ssl=true", f"--http-server-cert={cert}", f"--http-server-key={key}")

    def is_ready(server):
        with (
            suppress(OSError),
            closing(HTTPSConnection("127.0.0.1", server.port, timeout=LIMIT_S, context=context)) as client,
        ):
            client.request("GET", "/v2/health/ready")
            return client.getresponse().status == 200
        return False

    with start_target(*options, ready=False) as server:
        wait_until(lambda: is_ready(server))
        before = used_bytes(server), descriptors(server)
        print(f"--attack-seed={seed}")
        tls_junk(Target(server, seed), server.port, context)
        assert is_ready(server)
        wait_until(lambda: descriptors(server) <= before[1])
        assert used_bytes(server) - before[0] < LEFT_BYTES_MAX
        assert "Traceback" not in server.log


def test_clock_jumps(start_target, run_attack, compile_library, tmp_path):
    """The wall clock jumps by days and decades, during requests, without an effect on them."""
    shift = tmp_path / "shift"
    shift.write_bytes(bytes(8))
    wrapper = ("env", f"LD_PRELOAD={compile_library('clock.c')}", f"CLOCK_SHIFT={shift}")

    def jump(seconds):
        with shift.open("r+b", buffering=0) as file:
            file.write(struct.pack("q", seconds))

    with start_target("--log-verbose=1", "--log-format=ISO8601", wrapper=wrapper) as server:

        def attack(target):
            for days in (1, -1, 400, -400, 20_000, 0):
                jump(days * DAY_S)
                repository.check(server)

        found = run_attack(server, "clock jumps", attack)
        years = set(re.findall(r"^(\d{4})-\d\d-\d\dT", server.log, re.MULTILINE))
        assert len(years) >= 3, "the server's clock has not jumped"
    assert found.failures == 0
    assert found.longest_cpu_s < STALL_CPU_S_MAX


def oom_kills(server):
    """How many processes of a server's control group the kernel has killed for want of memory."""
    folder = memory_cgroup(server.process.pid)
    name = "memory.events" if (folder / "memory.events").exists() else "memory.oom_control"
    return int(re.search(r"^oom_kill (\d+)$", (folder / name).read_text(), re.MULTILINE)[1])


def test_little_memory(start_target, run_attack, cgroup_of):
    """In a control group of 1.5 GiB the kernel need not kill anything, however large what is sent becomes."""
    with start_target(wrapper=cgroup_of(1536 * MIB)) as server:

        def attack(target):
            for name in SOME:
                ATTACKS[name].run(target)

        found = run_attack(server, "a control group of 1.5 GiB", attack)
        assert oom_kills(server) == 0
    assert found.failures == 0


def test_few_descriptors(start_target, run_attack):
    """Stubs can be started again while clients hold descriptors, and only the models that crash are lost."""
    with start_target(wrapper=crowds.FEW_DESCRIPTORS, write=crowds.write) as server:
        before = {stub.title: stub for stub in server.stubs()}
        crashed = ("numbers_0", "steps_0", "more0_0", "more7_0")
        found = run_attack(server, "few descriptors", partial(crowds.crash, crashed))
        crowds.check(server)
        lost = {title for title, stub in before.items() if stub not in server.stubs()}
        assert {title.split()[-1] for title in lost} == set(crashed)
    assert found.failures == 0

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Conditions under which requests are measured that take a server with other options: TLS, traces, restrictions.

A condition is a word of a scenario. Its server runs beside the plain one for as long as its scenarios are measured.
"""

import os
import subprocess
from typing import NamedTuple

# Models that are there while metrics and statistics are read. Ensembles, which cost no process.
MODELS = 100
ENSEMBLE = """
platform: "ensemble"
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
ensemble_scheduling {{
  step [ {{ model_name: "{model}" model_version: -1
    input_map {{ key: "INPUT0" value: "INPUT0" }} output_map {{ key: "OUTPUT0" value: "OUTPUT0" }} }} ]
}}
"""


class Condition(NamedTuple):
    """Options of the server, by protocol, in which {folder} is a scratch folder; what each request says besides."""

    http: tuple[str, ...]
    grpc: tuple[str, ...]
    headers: dict[str, str] = {}
    metadata: dict[str, str] = {}


def tls(protocol):
    return (
        f"--{protocol}-use-ssl=true",
        f"--{protocol}-server-cert={{folder}}/cert.pem",
        f"--{protocol}-server-key={{folder}}/key.pem",
    )


TRACES = (
    "--trace-config=mode=triton",
    "--trace-config=triton,file={folder}/trace.json",
    "--trace-config=rate=1000",
    "--trace-config=level=TIMESTAMPS",
)
PATTERNS = ("--http-header-forward-pattern=^x-user-",), ("--grpc-header-forward-pattern=^x-user-",)
MANY = ("--model-repository={folder}/many",)

CONDITIONS = {
    "tls": Condition(tls("http"), tls("grpc")),
    "traces": Condition(TRACES, TRACES),
    # A pattern of headers to forward, of which the requests have none, and have one.
    "pattern": Condition(*PATTERNS),
    "forward": Condition(*PATTERNS, {"x-user-name": "somebody"}, {"x-user-name": "somebody"}),
    "restricted": Condition(
        ("--http-restricted-api=inference:bench-key=secret",),
        ("--grpc-restricted-protocol=inference:bench-key=secret",),
        {"bench-key": "secret"},
        {"triton-grpc-protocol-bench-key": "secret"},
    ),
    "scraped": Condition(MANY, MANY),
}
PLAIN = Condition((), ())


def options_of(sc, folder):
    """The options of a scenario's server besides those of all."""
    condition = CONDITIONS.get(sc.condition, PLAIN)
    return [o.format(folder=folder) for o in (condition.http if sc.protocol == "http" else condition.grpc)]


def headers_of(sc):
    """What each request of a scenario says besides: headers of HTTP, or metadata of gRPC."""
    condition = CONDITIONS.get(sc.condition, PLAIN)
    return condition.headers if sc.protocol == "http" else condition.metadata


def prepare(sc, folder):
    """Write the files that the options of a scenario's server name."""
    if sc.condition == "tls" and not os.path.exists(certificate(folder)):
        write_certificate(folder)
    if sc.condition == "scraped":
        write_models(os.path.join(folder, "many"), sc.model)


def certificate(folder):
    return os.path.join(folder, "cert.pem")


def write_certificate(folder):
    """A certificate for 127.0.0.1 that signs itself."""
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    argv += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    argv += ["-keyout", os.path.join(folder, "key.pem"), "-out", certificate(folder)]
    subprocess.run(argv, check=True, capture_output=True)


def write_models(folder, model, count=MODELS):
    """`count` ensembles of one step, which is the model."""
    for n in range(count):
        path = os.path.join(folder, f"ensemble_{n}")
        os.makedirs(os.path.join(path, "1"), exist_ok=True)
        with open(os.path.join(path, "config.pbtxt"), "w") as f:
            f.write(f'name: "ensemble_{n}"' + ENSEMBLE.format(model=model))

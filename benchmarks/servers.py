# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Servers that are compared: started, watched until they are ready, and stopped."""

import contextlib
import glob
import json
import os
import shlex
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request

# Regions of Triton's Python backend, which stay when it or a stub of it is killed.
REGIONS = "/dev/shm/triton_python_backend_shm_region_*"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# The certificates of a measurement sign themselves.
UNVERIFIED = ssl.create_default_context()
UNVERIFIED.check_hostname, UNVERIFIED.verify_mode = False, ssl.CERT_NONE


class NotReady(SystemExit):
    """A server that ended, or took too long, instead of getting ready."""


def http_get(url, timeout=2.0):
    try:
        with urllib.request.urlopen(url, timeout=timeout, context=UNVERIFIED) as r:
            return r.status, r.read()
    except urllib.error.HTTPError as e:
        return e.code, b""
    except OSError:
        return 0, b""


class Server:
    def __init__(self, name, command, ports, models, ready_path, log_dir):
        self.name = name
        self.template, self.models, self.log_dir = command, models, log_dir
        self.scheme = "http"
        self.http, self.grpc, self.metrics = ports
        self.command = (
            command.replace("{http}", str(self.http))
            .replace("{grpc}", str(self.grpc))
            .replace("{metrics}", str(self.metrics))
            .replace("{models}", models)
        )
        self.ready_path = ready_path
        self.log = os.path.join(log_dir, name + ".log")
        self.proc = None
        self.regions_before = set()
        self.has_stats = True
        self.json_only = False

    def with_options(self, options, label):
        """Another server by the same command with more options, at ports of its own."""
        ports = [free_port() for _ in range(3)]
        command = " ".join([self.template, *options])
        other = Server(self.name, command, ports, self.models, self.ready_path, self.log_dir)
        other.log = os.path.join(self.log_dir, f"{self.name}-{label}.log")
        other.has_stats, other.json_only = self.has_stats, self.json_only
        if any(o.startswith("--http-use-ssl") for o in options):
            other.scheme = "https"
        return other

    def start(self, timeout):
        begin = time.monotonic()
        self.regions_before = set(glob.glob(REGIONS))
        with open(self.log, "ab") as log:
            self.proc = subprocess.Popen(shlex.split(self.command), stdout=log, stderr=log, start_new_session=True)
        while time.monotonic() - begin < timeout:
            if self.proc.poll() is not None:
                raise NotReady(f"{self.name} exited with {self.proc.returncode}; see {self.log}")
            if http_get(f"{self.scheme}://127.0.0.1:{self.http}{self.ready_path}")[0] == 200:
                return time.monotonic() - begin
            time.sleep(0.01)
        self.stop()
        raise NotReady(f"{self.name} not ready after {timeout} s; see {self.log}")

    def stop(self):
        if self.proc is None:
            return
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGINT)
            try:
                self.proc.wait(20)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()
        with contextlib.suppress(ProcessLookupError):  # workers that outlive their parent
            os.killpg(self.proc.pid, signal.SIGKILL)
        self.proc = None
        for region in set(glob.glob(REGIONS)) - self.regions_before:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(region)

    def answered(self, model):
        """Requests this server says it has answered for a model, or None."""
        status, body = http_get(f"{self.scheme}://127.0.0.1:{self.http}/v2/models/{model}/stats")
        if status != 200:
            return None
        try:
            return sum(m["inference_stats"]["success"]["count"] for m in json.loads(body)["model_stats"])
        except (ValueError, KeyError):
            return None

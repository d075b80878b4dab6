# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The files in deploy/: they are well formed, and speak of options, ports and metrics that exist."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from pyruntime.runtime.cli.parse import parse_arguments
from pyruntime.runtime.observe.built_in import SAMPLE_NAMES

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
METRIC = re.compile(r"\b(?:nv|pyruntime)_[a-z_]+\b")
INSTRUCTIONS = {"FROM", "RUN", "WORKDIR", "COPY", "ARG", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


def need(program):
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program} here")


def instructions():
    """The instructions of the Dockerfile, each with the rest of its line."""
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


@pytest.mark.parametrize("name", ["grafana.json", "alerts.yaml"])
def test_metrics_exist(name):
    """Each metric that is shown, or that raises an alert, is one of the server's."""
    found = set(METRIC.findall((DEPLOY / name).read_text()))
    assert found - SAMPLE_NAMES == set()
    assert found


def test_dashboard():
    """Panels have titles, places of their own, and queries."""
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in panels})
    assert all(panel["title"] and all(target["expr"] for target in panel["targets"]) for panel in panels)


def test_alerts():
    """Each rule has a name of its own, an expression and a summary."""
    rules = [
        rule for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
    ]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert all(rule["expr"].count("(") == rule["expr"].count(")") and rule["annotations"]["summary"] for rule in rules)


def test_dockerfile():
    """Instructions exist, files to copy exist, the sources are complete, and the command is one of the server's."""
    found = instructions()
    assert {word for word, _ in found} <= INSTRUCTIONS
    copied = [rest.split()[:-1] for word, rest in found if word == "COPY" and not rest.startswith("--from")]
    names = {name for each in copied for name in each}
    assert {name for name in names if not (ROOT / name).exists()} == set()
    assert {"pyruntime", "runtime", "stub", "utils", "backends", "testing", "include", "setup.py"} <= names
    (entry,) = [json.loads(rest) for word, rest in found if word == "ENTRYPOINT"]
    (words,) = [json.loads(rest) for word, rest in found if word == "CMD"]
    assert entry == ["pyruntime", "serve"]
    assert parse_arguments(words)[0]


@pytest.mark.processes
def test_container(tmp_path):
    """The image can be built, where Docker runs."""
    need("docker")
    if subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("Docker does not run here")
    command = ["docker", "build", "--quiet", "-f", DEPLOY / "Dockerfile", ROOT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.processes
def test_service(tmp_path):
    """systemd finds no fault with the unit but that the program is not installed here."""
    need("systemd-analyze")
    unit = tmp_path / "pyruntime.service"
    text = (DEPLOY / "pyruntime.service").read_text()
    unit.write_text(text.replace("/opt/pyruntime/bin/pyruntime", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    assert said == []


def test_command_of_the_service():
    """The command of the unit has options of the server."""
    (command,) = re.findall(r"^ExecStart=(.*)$", (DEPLOY / "pyruntime.service").read_text(), re.MULTILINE)
    program, serve, *words = shlex.split(command)
    assert (Path(program).name, serve) == ("pyruntime", "serve")
    assert parse_arguments(words)[0] == {"config": "/etc/pyruntime/server.yaml"}


def test_manifests():
    """The probes ask for endpoints of ports that the container has, and the service leads there."""
    deployment, service = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {port["name"] for port in container["ports"]}
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")]
    assert {(probe["port"], probe["path"]) for probe in probes} == {
        ("http", "/v2/health/ready"),
        ("http", "/v2/health/live"),
    }
    assert {port["targetPort"] for port in service["spec"]["ports"]} == ports
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert parse_arguments(container["args"])[0]


@pytest.mark.processes
def test_manifests_are_of_their_kinds():
    """kubectl reads each manifest as its kind."""
    need("kubectl")
    command = ["kubectl", "annotate", "--local", "-f", DEPLOY / "kubernetes.yaml", "-o", "name", "a=b"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["deployment.apps/pyruntime", "service/pyruntime"]

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Follows a page of the documentation: its files are written, and its commands run, in the order of the page.

A block with a title is a file of that name. A block of `console` has commands behind `$ `, each with its output; `...`
stands for any text. A server runs until the next one begins, at ports of its own in place of the default ones. The
comment `<!-- tutorial: exits with 1 -->` before a block says how its commands end, and `<!-- tutorial: only shown -->`
that they are not run.
"""

import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(
    r"^(?:<!-- tutorial: (?:exits with (?P<status>\d+)|(?P<shown>only shown)) -->\n\n)?"
    r'^```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
SERVER = re.compile(r"^(?:pyruntime serve|tritonserver)(?P<options>(?: .*)?)$", re.DOTALL)
# The first argument, or an option.
REPOSITORY = re.compile(r"(?:^ (?!-)| --model-repository[ =])(?P<folder>\S+)")
CLIENTS = re.compile(r"^pyruntime (infer|models|load|unload|stats)\b")
HTTP_PORT, GRPC_PORT, METRICS_PORT = 8000, 8001, 8002


class Command(NamedTuple):
    """One command of a session, and its output."""

    line: str
    output: str


def commands_of(session: str) -> list[Command]:
    """The commands of a block; one that is not complete at the end of its line goes on in the next."""
    commands: list[Command] = []
    lines = iter(session.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while not is_complete(command):
                command += "\n" + next(lines)
            commands.append(Command(command, ""))
        else:
            last = commands.pop()
            commands.append(last._replace(output=f"{last.output}{line}\n"))
    return commands


def is_complete(command: str) -> bool:
    """Whether all quotes of a command are closed, and nothing follows a backslash at its end."""
    try:
        shlex.split(command)
    except ValueError:
        return False
    return True


def trimmed(text: str) -> str:
    """A text without blanks at the ends of its lines and empty lines around it."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


def pattern_of(expected: str) -> re.Pattern[str]:
    """Matches the output of a command on a page."""
    return re.compile(".*".join(map(re.escape, trimmed(expected).split("..."))), re.DOTALL)


class Reader:
    """Follows the steps of a page, in a folder of its own."""

    def __init__(self, folder, serving, reserve_ports, wait_until, servers):
        self.root = self.folder = folder
        self.serving = serving
        self.reserve_ports = reserve_ports
        self.wait_until = wait_until
        self.servers = servers
        self.server = None

    def write(self, path, text):
        """Write a file; paths begin where the page begins."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(self.with_ports(text))

    def run(self, command, status):
        """Run a command, which must have the output on the page and this exit status."""
        server = SERVER.match(command.line)
        if server and status == 0:
            self.serve(server["options"], command.output)
        elif command.line.startswith("cd "):
            self.folder = self.folder / command.line.removeprefix("cd ")
        elif server:
            with self.reserve_ports(3) as (http, grpc, metrics):
                ports = f" --http-port={http} --grpc-port={grpc} --metrics-port={metrics}"
                self.check(command._replace(line=command.line + ports), status)
        elif CLIENTS.match(command.line):
            url = f" --url http://localhost:{self.server.port}"
            self.check(command._replace(line=command.line + url), status)
        else:
            self.check(command._replace(line=self.with_ports(command.line)), status)

    def check(self, command, status):
        """Run a command in the foreground; errors are among its output."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        # As wide as a page.
        environment = {**os.environ, "PATH": path, "COLUMNS": "120", "TRITON_SERVER_ESCAPE_LOG_MESSAGES": "0"}
        done = subprocess.run(
            ["bash", "-c", command.line],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        printed = self.without_ports(done.stdout)
        assert done.returncode == status, printed
        assert pattern_of(command.output).fullmatch(trimmed(printed)), f"$ {command.line}\n{printed}"

    def serve(self, options, expected):
        """Stop the current server, and start one; wait until it is ready and has the output on the page."""
        self.servers.close()
        repository = self.folder / REPOSITORY.search(options)["folder"]
        in_folder = ("env", f"--chdir={self.folder}")
        others = shlex.split(REPOSITORY.sub("", options))
        if repository.is_file():  # the file of a model; the log needs a folder
            others.append(f"--model-repository={repository}")
            repository = self.root / ".empty"
            repository.mkdir(exist_ok=True)
        self.server = self.servers.enter_context(self.serving(repository, *others, wrapper=in_folder))
        self.wait_until(lambda: pattern_of(expected).search(self.server.log))

    def with_ports(self, text):
        """A text of the page for the ports that the server has here."""
        if self.server is None:
            return text
        for default, port in self.ports():
            text = text.replace(f"localhost:{default}", f"localhost:{port}")
        return text

    def without_ports(self, text):
        """The output with the ports that are on the page."""
        for default, port in self.ports() if self.server else ():
            text = text.replace(f"localhost:{port}", f"localhost:{default}")
        return text

    def ports(self):
        """The default ports, with those of the server in place of them."""
        server = self.server
        return ((HTTP_PORT, server.port), (GRPC_PORT, server.grpc_port), (METRICS_PORT, server.metrics_port))


def follow(text, folder, serving, reserve_ports, wait_until):
    """Take all steps of a page in an empty folder. Blocks that are neither files nor commands are for reading only."""
    with ExitStack() as servers:
        reader = Reader(folder, serving, reserve_ports, wait_until, servers)
        for block in BLOCK.finditer(text):
            if block["shown"]:
                continue
            if block["title"]:
                reader.write(block["title"], block["body"])
            elif block["language"] == "console":
                for command in commands_of(block["body"]):
                    reader.run(command, int(block["status"] or 0))

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Sends the same requests to a real Triton and to pyruntime, and prints what they answer differently.

Both serve the models of answer_models, each from a copy of its own. The cases are tables in answer_cases, one module
for each group; a difference that is on purpose names its row in docs/explanation/differences.md. The exit status is 1
if there is another difference, or none where there should be one. benchmarks/compare_answers runs this with what it
needs.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile

from answer_cases import GROUPS
from answer_clients import Client, remove_memory, wait_until_loaded
from answer_differences import differences, normalise, verdict
from servers import Server, free_port
from tables import print_table

HERE = os.path.dirname(os.path.abspath(__file__))
# Models that are loaded by the cases, or cannot be.
NOT_LOADED = {"later", "unreadable", "broken"}
LIVE = "/v2/health/live"
# Seconds in which a server that crashes is gone.
ENDS_S = 3
VERDICTS = ("same", "on purpose", "different", "stale")
# What a value may be long in the list of differences.
SHOWN_MAX = 300
OPTIONS = (
    "--model-repository={models} --http-address=127.0.0.1 --http-port={http} --grpc-address=127.0.0.1 "
    "--grpc-port={grpc} --metrics-address=127.0.0.1 --metrics-port={metrics} --model-control-mode=explicit "
    "--exit-on-error=false --http-header-forward-pattern=x-.* --grpc-header-forward-pattern=x-.* "
    "--http-restricted-api=logging:admin=key --grpc-restricted-protocol=logging:admin=key "
    "--cache-config=local,size=1048576 "
    "--rate-limit=execution_count --rate-limit-resource=R:4 --rate-limit-resource=S:2:0 --rate-limit-resource=T:1"
)
# Triton 2.51 has no option for it and allows it always.
OURS = "--allow-client-shm=true"


class Compared:
    """A server, its own copy of the models, and its client."""

    def __init__(self, name, command, folder):
        self.repository = os.path.join(folder, name)
        shutil.copytree(os.path.join(HERE, "answer_models"), self.repository)
        self._models = sorted(set(os.listdir(self.repository)) - NOT_LOADED)
        loads = " ".join(f"--load-model={model}" for model in [*self._models, "broken"])
        loads += f" --trace-config=triton,file={folder}/{name}.trace"
        ports = [free_port() for _ in range(3)]
        self.server = Server(name, f"{command} {OPTIONS} {loads}", ports, self.repository, LIVE, folder)
        self.client = Client(self.server.http, self.server.grpc)

    def start(self):
        self.server.start(timeout=120)
        wait_until_loaded(self.client, self._models)

    def answers(self, case):
        """The answers to a case, and whether the server has ended at it. Then it is started again."""
        found = normalise(self.client.answers(case.steps), self.repository)
        if any("no answer" in each for each in found) and self._has_ended():
            found = [*found, f"the server ended with {self.server.proc.returncode}"]
            self.start()
        return found

    def _has_ended(self):
        """Whether a server that has cut a connection ends, which may take it a moment."""
        try:
            self.server.proc.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self):
        self.client.close()
        self.server.stop()


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triton", required=True, metavar="COMMAND", help="the command of a real Triton 2.51")
    parser.add_argument("--pyruntime", required=True, metavar="COMMAND", help="the command of pyruntime")
    parser.add_argument("--group", action="append", choices=GROUPS, help="only this group")
    parser.add_argument("--case", default="", help="only cases with this text in their names")
    parser.add_argument("--verbose", action="store_true", help="print differences on purpose, too")
    return parser.parse_args()


def compare(case, servers):
    """The differences of a case, those of the first server first."""
    try:
        first, second = (server.answers(case) for server in servers)
    finally:
        remove_memory(case.steps)
    return differences(first, second)


def describe(group, case, found, servers):
    """Print how the answers to a case differ."""
    print(f"\n{group}: {case.name}")
    if case.different:
        print(f"  on purpose: {case.different}" if found else f"  no longer different: {case.different}")
    for each in found:
        for server, value in zip(servers, (each.first, each.second)):
            text = repr(value)
            text = text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."
            print(f"  {each.place}  {server.server.name}: {text}")


def run(options, servers):
    """Compare all cases. Returns the table of verdicts."""
    rows = []
    for group in options.group or GROUPS:
        counts = dict.fromkeys(VERDICTS, 0)
        for case in GROUPS[group]:
            if options.case not in case.name:
                continue
            found = compare(case, servers)
            how = verdict(case, found)
            counts[how] += 1
            if how in ("different", "stale") or (found and options.verbose):
                describe(group, case, found, servers)
        rows.append([group, sum(counts.values()), *counts.values()])
    return rows


def main():
    options = read_options()
    # So that a `timeout` around this program leaves no servers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="compare-answers-") as folder:
        commands = {"triton": options.triton, "pyruntime": f"{options.pyruntime} {OURS}"}
        servers = [Compared(name, command, folder) for name, command in commands.items()]
        try:
            for server in servers:
                server.start()
            rows = run(options, servers)
        finally:
            for server in servers:
                server.stop()
    total = ["all", *(sum(column) for column in list(zip(*rows))[1:])]
    print()
    print_table([["group", "cases", *VERDICTS], *rows, total])
    return 1 if total[-1] or total[-2] else 0


if __name__ == "__main__":
    sys.exit(main())

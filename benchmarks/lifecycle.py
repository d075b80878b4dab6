#!/usr/bin/env python3
# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Start-up, memory, load/unload and shut-down of an inference server.

    lifecycle.py --command 'DEST/bin/triton --model-repository={models}
                    --http-address=127.0.0.1 --http-port={http} --grpc-port={grpc}
                    --metrics-port={metrics}' \\
                 --explicit='--model-control-mode=explicit'

--explicit is what to append so that models are loaded on request; leave it out
to skip the load and unload part.  The model used is models/add_sub; repositories
with other instance counts and model counts are derived from it in a temporary
folder.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import kserve
import proctree
from servers import Server, free_port
from tables import spread

HERE = os.path.dirname(os.path.abspath(__file__))


def repository(root, models, instances):
    """A repository of copies of add_sub: `models` of them, `instances` each."""
    path = os.path.join(root, f"m{models}i{instances}")
    for n in range(models):
        name = "add_sub" if n == 0 else f"add_sub_{n}"
        at = os.path.join(path, name)
        shutil.copytree(os.path.join(HERE, "models", "add_sub"), at)
        config = os.path.join(at, "config.pbtxt")
        with open(config) as f:
            text = f.read()
        text = text.replace('name: "add_sub"', f'name: "{name}"')
        text = re.sub(r"count: \d+", f"count: {instances}", text)
        with open(config, "w") as f:
            f.write(text)
    return path


def post(url, body=b"{}"):
    request = urllib.request.Request(url, data=body, method="POST")
    with urllib.request.urlopen(request, timeout=60) as r:
        return r.read()


def infer_once(server, model):
    body, headers = kserve.request([("INPUT0", [1.0] * 16), ("INPUT1", [2.0] * 16)])
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.http}/v2/models/{model}/infer",
        data=body,
        method="POST",
        headers=headers,
    )
    with urllib.request.urlopen(request, timeout=30) as r:
        return r.read()


def show_memory(pid, label):
    total = 0.0
    for n, p in enumerate(proctree.tree(pid)):
        m = proctree.memory(p)
        total += m["pss"]
        if n < 3:
            print(
                f"  {label}: {'host' if n == 0 else 'below'} {m['name']}: rss {m['rss']:.1f} MiB, "
                f"pss {m['pss']:.1f}, private {m['private']:.1f}, {m['threads']} threads"
            )
    print(f"  {label}: {len(proctree.tree(pid))} processes, pss in all {total:.1f} MiB")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--command", required=True)
    ap.add_argument("--name", default="server")
    ap.add_argument("--explicit")
    ap.add_argument("--repeats", type=int, default=3)
    ap.add_argument("--ready", default="/v2/health/ready")
    opts = ap.parse_args()
    root = tempfile.mkdtemp(prefix="lifecycle-")
    shapes = [(1, 1), (1, 8), (8, 1)]
    repos = {s: repository(root, *s) for s in shapes}

    def server(models, extra=""):
        return Server(opts.name, opts.command + " " + extra, [free_port() for _ in range(3)], models, opts.ready, root)

    try:
        for shape in shapes:
            up, down, cpu, left = [], [], [], set()
            for turn in range(opts.repeats):
                shm = set(os.listdir("/dev/shm"))
                s = server(repos[shape])
                try:
                    up.append(s.start(90))
                    cpu.append(sum(proctree.cpu_seconds(s.proc.pid)))
                    infer_once(s, "add_sub")
                    if turn == 0:
                        show_memory(s.proc.pid, f"{shape[0]} model(s) x {shape[1]} instance(s)")
                        held = set(os.listdir("/dev/shm")) - shm
                        resident = sum(os.stat("/dev/shm/" + name).st_blocks for name in held) // 2
                        print(f"    /dev/shm held: {len(held)} files, {resident} KiB resident")
                finally:
                    begin = time.monotonic()
                    s.stop()
                    down.append(time.monotonic() - begin)
                left |= set(os.listdir("/dev/shm")) - shm
            print(
                f"{shape[0]} model(s) x {shape[1]} instance(s): ready after {spread(up, 2)} s "
                f"(CPU {spread(cpu, 2)} s), stopped in {spread(down, 2)} s, "
                f"{len(left)} files left in /dev/shm"
            )
        if opts.explicit:
            s = server(repos[(8, 1)], opts.explicit)
            try:
                up = s.start(90)
                print(f"no model: ready after {up:.2f} s")
                show_memory(s.proc.pid, "no model")
                load, gone, base = [], [], f"http://127.0.0.1:{s.http}/v2"
                for _ in range(max(5, opts.repeats)):
                    idle = len(proctree.tree(s.proc.pid))
                    begin = time.monotonic()
                    post(f"{base}/repository/models/add_sub/load")
                    load.append(time.monotonic() - begin)
                    infer_once(s, "add_sub")
                    begin = time.monotonic()
                    post(f"{base}/repository/models/add_sub/unload")
                    answered = time.monotonic() - begin
                    while len(proctree.tree(s.proc.pid)) > idle and time.monotonic() - begin < 30:
                        time.sleep(0.002)
                    gone.append((answered, time.monotonic() - begin))
                print(
                    f"load (one instance) {spread([1e3 * x for x in load])} ms; "
                    f"unload answered {spread([1e3 * a for a, _ in gone])} ms, "
                    f"its process gone {spread([1e3 * g for _, g in gone])} ms"
                )
            finally:
                s.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Streams from a decoupled model over HTTP (generate_stream), and counts what comes.

    generate_load.py HOST:PORT MODEL RESPONSES CONCURRENCY SECONDS

Every stream is checked: as many events as were asked for, in order. Prints what compare.py reads; a latency is the time
of a whole stream.
"""

import json
import re
import socket
import sys
import threading
import time

EVENT = re.compile(rb"data: (\{[^\n]*\})\n\n")


def request_of(model, count):
    body = json.dumps({"COUNT": [count], "VALUE": [0.0, 1.0, 2.0, 3.0]}).encode()
    head = f"POST /v2/models/{model}/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def read_stream(sock):
    """The body of one chunked response, chunk sizes and all."""
    data = bytearray()
    while not data.endswith(b"\r\n0\r\n\r\n"):
        piece = sock.recv(1 << 16)
        if not piece:
            sys.exit("the server hung up")
        data += piece
    return bytes(data)


def check(data, count):
    """Chunks may part an event anywhere, so look at it without them."""
    body = data.partition(b"\r\n\r\n")[2]
    text = b"".join(re.split(rb"(?:^|\r\n)[0-9a-fA-F]+\r\n", body))
    events = [json.loads(event) for event in EVENT.findall(text)]
    if [event.get("INDEX") for event in events] != list(range(count)):
        sys.exit(f"{len(events)} events came, or in another order: {data[:300]!r}")


def main():
    host, _, port = sys.argv[1].partition(":")
    model, count, concurrency, seconds = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
    request = request_of(model, count)
    took = []
    begin = time.perf_counter()

    def client():
        with socket.create_connection((host, int(port))) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            now, first = time.perf_counter(), True
            while now < begin + seconds:
                sock.sendall(request)
                data = read_stream(sock)
                later = time.perf_counter()
                took.append(later - now)
                if first or data.count(b'"INDEX":') != count:
                    check(data, count)
                first, now = False, later

    threads = [threading.Thread(target=client) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - begin
    took.sort()
    print(f"\n  Throughput: {len(took) / wall:.2f} infer/sec")
    print(f"  Response Throughput: {len(took) * count / wall:.2f}")
    for p in (50, 99):
        print(f"  p{p} latency: {int(1e6 * took[min(len(took) - 1, len(took) * p // 100)])} usec")
    print(f"  {len(took)} requests in all")


main()

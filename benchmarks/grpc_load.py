#!/usr/bin/env python3
# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A plain closed-loop gRPC client for what perf_analyzer cannot send or does not accept: metadata, and KServe v2
servers without the model-config call.

    grpc_load.py HOST:PORT MODEL CONCURRENCY SECONDS DATA [--metadata=NAME=VALUE] [--root-cert=FILE]

DATA is a file as for perf_analyzer's --input-data, of numbers (FP32) and texts (BYTES). Its requests are sent one after
the other, again and again. Run it with a Python that has tritonclient (triton_setup.sh makes one).  It costs much more
CPU per request than perf_analyzer, so read the server's CPU per request rather than the throughput.
"""

import argparse
import asyncio
import itertools
import json
import sys
import time

import grpc
from kserve import datatype_of, packed
from tritonclient.grpc import service_pb2


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("model")
    parser.add_argument("concurrency", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("data")
    parser.add_argument("--metadata", action="append", default=[], type=lambda text: tuple(text.split("=", 1)))
    parser.add_argument("--root-cert")
    return parser.parse_args()


def requests_of(opts):
    """Serialised once: this measures the server, not protobuf in the client."""
    with open(opts.data) as f:
        data = json.load(f)["data"]
    return [request(opts.model, inputs).SerializeToString() for inputs in data]


def request(model, inputs):
    r = service_pb2.ModelInferRequest(model_name=model)
    for name, tensor in inputs.items():
        r.inputs.add(name=name, datatype=datatype_of(tensor["content"]), shape=tensor["shape"])
        r.raw_input_contents.append(packed(tensor["content"]))
    return r


def channel_to(opts):
    if not opts.root_cert:
        return grpc.aio.insecure_channel(opts.target)
    with open(opts.root_cert, "rb") as f:
        return grpc.aio.secure_channel(opts.target, grpc.ssl_channel_credentials(f.read()))


async def load(opts):
    """(the time of each request, the time of all), after a request that is looked at."""
    bodies = requests_of(opts)
    async with channel_to(opts) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer", request_serializer=None, response_deserializer=None
        )
        first = service_pb2.ModelInferResponse.FromString(await call(bodies[0], metadata=opts.metadata))
        if not first.outputs:
            sys.exit("no outputs in the answer")
        took, following = [], itertools.cycle(bodies)
        begin = time.perf_counter()
        end = begin + opts.seconds

        async def loop():
            now = time.perf_counter()
            while now < end:
                await call(next(following), metadata=opts.metadata)
                later = time.perf_counter()
                took.append(later - now)
                now = later

        await asyncio.gather(*(loop() for _ in range(opts.concurrency)))
        return took, time.perf_counter() - begin


def main():
    took, wall = asyncio.run(load(read_options()))
    took.sort()
    print(f"\n  Throughput: {len(took) / wall:.2f} infer/sec")
    for p in (50, 99):
        print(f"  p{p} latency: {int(1e6 * took[min(len(took) - 1, len(took) * p // 100)])} usec")
    print(f"  {len(took) + 1} requests in all")


main()

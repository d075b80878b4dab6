#!/usr/bin/env python3
# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A plain closed-loop gRPC client for KServe v2 servers perf_analyzer refuses
(it wants the model-config call, which not every server has).

    grpc_load.py HOST:PORT MODEL CONCURRENCY SECONDS

Run it with a Python that has tritonclient (triton_setup.sh makes one).  It costs
much more CPU per request than perf_analyzer, so read the server's CPU per
request rather than the throughput.
"""

import asyncio
import struct
import sys
import time

import grpc
from tritonclient.grpc import service_pb2


def request(model):
    r = service_pb2.ModelInferRequest(model_name=model)
    for name, values in (("INPUT0", [float(i) for i in range(16)]), ("INPUT1", [1.0] * 16)):
        r.inputs.add(name=name, datatype="FP32", shape=[16])
        r.raw_input_contents.append(struct.pack("<16f", *values))
    return r


async def main():
    target, model, concurrency, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    async with grpc.aio.insecure_channel(target) as channel:
        # serialised once: this measures the server, not protobuf in the client
        body = request(model).SerializeToString()
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer", request_serializer=None, response_deserializer=None
        )
        first = service_pb2.ModelInferResponse.FromString(await call(body))
        if not first.outputs:
            sys.exit("no outputs in the answer")
        took = []
        begin = time.perf_counter()
        end = begin + seconds

        async def loop():
            now = time.perf_counter()
            while now < end:
                await call(body)
                later = time.perf_counter()
                took.append(later - now)
                now = later

        await asyncio.gather(*(loop() for _ in range(concurrency)))
        wall = time.perf_counter() - begin
    took.sort()
    print(f"\n  Throughput: {len(took) / wall:.2f} infer/sec")
    for p in (50, 99):
        print(f"  p{p} latency: {int(1e6 * took[min(len(took) - 1, len(took) * p // 100)])} usec")
    print(f"  {len(took) + 1} requests in all")


asyncio.run(main())

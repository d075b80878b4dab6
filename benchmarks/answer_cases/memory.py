# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Shared memory of clients: registered, used, looked at and unregistered."""

from answer_steps import Memory, call, call_infer, case, contents, explain, get, infer, infer_message, post, raw_input

from answer_cases import reasons

KEY = "/compare_answers"
DATA = contents("INT32", [1, 2, 3, 4])
FILL = Memory(KEY, DATA + bytes(48))
PATH = "/v2/systemsharedmemory"
REGISTER = post(f"{PATH}/region/mine/register", {"key": KEY, "byte_size": 64})
DROP = post(f"{PATH}/unregister")


def _register(name="mine", **members):
    return post(f"{PATH}/region/{name}/register", members)


def _place(**members):
    return {"shared_memory_region": "mine", "shared_memory_byte_size": 16, **members}


def _input(**members):
    return {"name": "IN", "datatype": "INT32", "shape": [2, 2], "parameters": _place(**members)}


def _infer(**members):
    return infer("variable", _input(**members))


def _to_region(**members):
    return infer(
        "variable",
        {"name": "IN", "datatype": "INT32", "shape": [2, 2], "data": [5, 6, 7, 8]},
        outputs=[{"name": "OUT", "parameters": _place(**members)}],
    )


def _region_input(**parameters):
    message = infer_message("variable", raw_input("IN", "INT32", b"", [2, 2])[0]).inputs[0]
    for name, value in {"shared_memory_region": "mine", "shared_memory_byte_size": 16, **parameters}.items():
        if value is not None:
            setattr(message.parameters[name], "string_param" if isinstance(value, str) else "int64_param", value)
    return message


def _used(name, *steps):
    """A case with a region that is there meanwhile."""
    return case(name, FILL, REGISTER, *steps, DROP)


_RAW = raw_input("IN", "INT32", [5, 6, 7, 8], [2, 2])

CASES = [
    case("status of nothing", get(f"{PATH}/status")),
    case("status of an unknown region", get(f"{PATH}/region/nobody/status")),
    case("status of nothing, grpc", call("SystemSharedMemoryStatus")),
    case("status of an unknown region, grpc", call("SystemSharedMemoryStatus", name="nobody")),
    case("cuda: status of nothing", get("/v2/cudasharedmemory/status")),
    case("cuda: status of an unknown region", get("/v2/cudasharedmemory/region/nobody/status")),
    case("cuda: no handle", post("/v2/cudasharedmemory/region/mine/register", {"device_id": 0, "byte_size": 8})),
    case("cuda: unregister nothing", post("/v2/cudasharedmemory/unregister")),
    case("cuda: status, grpc", call("CudaSharedMemoryStatus")),
    case("register and unregister", FILL, REGISTER, get(f"{PATH}/status"), get(f"{PATH}/region/mine/status"),
         post(f"{PATH}/region/mine/unregister"), get(f"{PATH}/status")),
    case("register and unregister, grpc", FILL, call("SystemSharedMemoryRegister", name="mine", key=KEY, byte_size=64),
         call("SystemSharedMemoryStatus"), call("SystemSharedMemoryStatus", name="mine"),
         call("SystemSharedMemoryUnregister", name="mine"), call("SystemSharedMemoryStatus")),
    case("unregister an unknown region", post(f"{PATH}/region/nobody/unregister")),
    case("unregister an unknown region, grpc", call("SystemSharedMemoryUnregister", name="nobody")),
    _used("register twice", REGISTER),
    _used("register twice, grpc", call("SystemSharedMemoryRegister", name="mine", key=KEY, byte_size=64)),
    _used("one key for two regions", _register("yours", key=KEY, byte_size=32), get(f"{PATH}/status")),
    case("an unknown key", _register(key="/compare_answers_nobody", byte_size=8)),
    case("an unknown key, grpc", call("SystemSharedMemoryRegister", name="mine", key="/compare_answers_nobody",
         byte_size=8)),
    case("no key", _register(byte_size=8)),
    case("no byte_size", FILL, _register(key=KEY)),
    case("an empty key", _register(key="", byte_size=8)),
    case("a key of slashes", _register(key="//", byte_size=8)),
    case("a key without a slash", FILL, _register(key=KEY.lstrip("/"), byte_size=8), DROP),
    case("key is a number", _register(key=1, byte_size=8)),
    case("byte_size is a text", FILL, _register(key=KEY, byte_size="8")),
    case("byte_size is negative", FILL, _register(key=KEY, byte_size=-8)),
    case("byte_size is 0", FILL, _register(key=KEY, byte_size=0), DROP),
    case("offset is negative", FILL, _register(key=KEY, byte_size=8, offset=-1)),
    case("larger than the object", FILL, _register(key=KEY, byte_size=65), DROP),
    case("an offset beyond the object", FILL, _register(key=KEY, byte_size=8, offset=4096), DROP),
    case("an offset that is no page", FILL, _register(key=KEY, byte_size=8, offset=8), DROP),
    case("a key of Triton's own", _register(key="/triton_python_backend_shm_region_1", byte_size=8)),
    case("no document", post(f"{PATH}/region/mine/register", b"")),
    _used("an input", _infer()),
    _used("an input at an offset", infer("variable", {**_input(shared_memory_offset=4, shared_memory_byte_size=12),
          "shape": [1, 3]})),
    _used("an output", _to_region(), Memory(KEY, size=16)),
    _used("an output at an offset", _to_region(shared_memory_offset=16), Memory(KEY, size=32)),
    _used("an output of which the place is too small", _to_region(shared_memory_byte_size=8), Memory(KEY, size=16)),
    _used("an output of which the place is larger", _to_region(shared_memory_byte_size=32), Memory(KEY, size=32)),
    _used("an input of another size", _infer(shared_memory_byte_size=12)),
    _used("an offset beyond the region", _infer(shared_memory_offset=64)),
    _used("beyond the end of the region", _infer(shared_memory_offset=56)),
    _used("an offset that overflows", _infer(shared_memory_offset=2**64 - 1)),
    _used("an offset that is negative", _infer(shared_memory_offset=-1)),
    _used("an offset that is a text", _infer(shared_memory_offset="1")),
    _used("no size", infer("variable", {"name": "IN", "datatype": "INT32", "shape": [2, 2],
          "parameters": {"shared_memory_region": "mine"}})),
    _used("a region and data", infer("variable", {**_input(), "data": [1, 2, 3, 4]})),
    _used("an output in a region and binary", infer("variable", _input(), outputs=[
        {"name": "OUT", "parameters": _place(binary_data=True)}])),
    case("an unknown region", _infer()),
    case("an unknown region for an output", _to_region()),
    case("a region that is a number", _infer(shared_memory_region=1)),
    _used("an input, grpc", call_infer("variable", _region_input())),
    _used("an output, grpc", call_infer("variable", _RAW, outputs=[("OUT", _place())]), Memory(KEY, size=16)),
    _used("input and output, grpc", call_infer("variable", _region_input(), outputs=[
        ("OUT", _place(shared_memory_offset=16))]), Memory(KEY, size=32)),
    _used("an input of another size, grpc", call_infer("variable", _region_input(shared_memory_byte_size=12))),
    _used("an offset beyond the region, grpc", call_infer("variable", _region_input(shared_memory_offset=64))),
    _used("beyond the end of the region, grpc", call_infer("variable", _region_input(shared_memory_offset=56))),
    _used("an offset that is negative, grpc", call_infer("variable", _region_input(shared_memory_offset=-1))),
    _used("no size, grpc", call_infer("variable", _region_input(shared_memory_byte_size=None))),
    _used("no region, grpc", call_infer("variable", _region_input(shared_memory_region=None))),
    case("an unknown region, grpc", call_infer("variable", _region_input())),
    case("a region that is a number, grpc", call_infer("variable", _region_input(shared_memory_region=1))),
]  # fmt: skip

DIFFERENT = {
    reasons.JSON: (
        "key is a number", "byte_size is a text", "byte_size is negative", "offset is negative",
        "an offset that is negative", "an offset that is a text", "a region that is a number", "no document",
    ),
    reasons.ONE_KEY: ("one key for two regions",),
    reasons.NAMES: ("an empty key", "a key of slashes", "a key of Triton's own",),
    reasons.NOT_MAPPED: ("byte_size is 0", "an offset that is no page",),
    reasons.PLACES: ("an output, grpc", "input and output, grpc",),
}  # fmt: skip
CASES = explain(CASES, DIFFERENT)

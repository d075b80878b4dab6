# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Models that call models (BLS): inputs, outputs, waits for each other, and deaths in between.

Most tests are checks inside of a model: its execute runs the one that the request's id names. A check that fails is an
exception of execute, which the client reads.
"""

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

INPUT = {"IN": np.array([1, 2])}
DECOUPLED = "model_transaction_policy { decoupled: true }"
DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING",
    "BF16",
)  # fmt: skip

# Gives back what it gets, whatever that is; a view of it, where that is possible.
ANY = """
class TritonPythonModel:
    def execute(self, requests):
        def answer(tensor):
            name = "OUT_" + tensor.name()
            if tensor.name() == "BF16":
                return pb_utils.Tensor.from_dlpack(name, tensor)
            return pb_utils.Tensor(name, tensor.as_numpy())
        return [pb_utils.InferenceResponse([answer(tensor) for tensor in request.inputs()]) for request in requests]
"""
ANY_CONFIG = 'backend: "python"' + "".join(
    f"""
    input [ {{ name: "{name}" data_type: TYPE_{name} dims: [ -1 ] optional: true }} ]
    output [ {{ name: "OUT_{name}" data_type: TYPE_{name} dims: [ -1 ] }} ]
    """
    for name in DATATYPES
)
# Answers with what the request was, and does what its parameter says.
CALLEE = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]
        self.version = args["model_version"]

    def execute(self, requests):
        return [getattr(self, "do_" + json.loads(request.parameters()).get("act", "tell"))(request)
                for request in requests]

    def answer(self, array, **parameters):
        outputs = [pb_utils.Tensor("OUT", array), pb_utils.Tensor("TWICE", 2 * array)]
        return pb_utils.InferenceResponse(outputs, parameters=parameters)

    def do_tell(self, request):
        return self.answer(
            request.inputs()[0].as_numpy(), version=self.version, id=request.request_id(), flags=request.flags(),
            correlation_id=json.dumps(request.correlation_id()), timeout=request.timeout(),
            parameters=request.parameters(), outputs=json.dumps(sorted(request.requested_output_names())),
        )

    def do_change(self, request):
        array = request.inputs()[0].as_numpy()
        array[:] = -1
        return self.answer(array)

    def do_raise(self, request):
        raise ValueError("exploded")

    def do_fail(self, request):
        code = getattr(pb_utils.TritonError, json.loads(request.parameters())["code"])
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("refused", code))

    def do_send_later(self, request):
        array, sender = request.inputs()[0].as_numpy(), request.get_response_sender()
        threading.Thread(target=lambda: sender.send(self.answer(array), 1)).start()

    def do_forget(self, request):
        pass

    def do_large(self, request):
        return self.answer(np.arange(request.inputs()[0].as_numpy()[0]))
"""
IN_TWO_OUT = """
backend: "python"
input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] }, { name: "TWICE" data_type: TYPE_INT64 dims: [ -1 ] } ]
version_policy { all { } }
"""
# Answers with each of the numbers that it gets; negative ones are errors.
STREAMS = """
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request,)).start()

    def answer(self, request):
        parameters = json.loads(request.parameters())
        sender = request.get_response_sender()
        array = request.inputs()[0].as_numpy()
        if "endless" in parameters:
            while not sender.is_cancelled():
                sender.send(self.response(array[0]))
            with open(self.folder + "/cancelled", "a") as file:
                file.write("x")
            sender.send(flags=FINAL)
            return
        for number in array[:-1]:
            sender.send(self.response(number))
        if "alone" in parameters:
            sender.send(self.response(array[-1]))
            sender.send(flags=FINAL)
        elif len(array):
            sender.send(self.response(array[-1]), FINAL)
        else:
            sender.send(flags=FINAL)

    def response(self, number):
        if number < 0:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("refused", pb_utils.TritonError.NOT_FOUND))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number]))])
"""
HELPERS = """
import asyncio, gc, weakref
from concurrent.futures import ThreadPoolExecutor

def tensor(*numbers):
    return pb_utils.Tensor("IN", np.array(numbers, np.int64))

def request_to(model, *numbers, **options):
    return pb_utils.InferenceRequest(model_name=model, inputs=[tensor(*numbers)], **options)

def output(response, name="OUT"):
    assert not response.has_error(), response.error().message()
    return pb_utils.get_output_tensor_by_name(response, name).as_numpy()

def outputs(responses):
    return [output(response).tolist() for response in responses]

def error_of(response):
    assert response.has_error()
    assert response.output_tensors() == []
    return response.error().code(), response.error().message()

def raised_by(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    raise AssertionError("nothing was raised")

def equal(found, expected):
    assert found == expected, (found, expected)
"""
CHECKS = (
    HELPERS
    + '''
class TritonPythonModel:
    def initialize(self, args):
        self.repository = os.path.dirname(args["model_repository"])

    def execute(self, requests):
        for request in requests:
            getattr(self, "check_" + request.request_id())(request)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
                for request in requests]

    # One call.

    def check_response(self, request):
        """The response has the callee's outputs and parameters."""
        response = request_to("callee", 3, 4).exec()
        equal(type(response), pb_utils.InferenceResponse)
        equal((response.has_error(), response.error()), (False, None))
        equal([tensor.name() for tensor in response.output_tensors()], ["OUT", "TWICE"])
        equal(output(response).tolist(), [3, 4])
        equal(output(response, "TWICE").tolist(), [6, 8])
        equal(json.loads(response.parameters())["version"], "2")

    def check_many_calls(self, request):
        """One call after the other, more than there are places for anything."""
        for number in range(2000):
            equal(output(request_to("callee", number).exec()).tolist(), [number])

    def check_same_request_again(self, request):
        """A request may be executed any number of times."""
        call = request_to("callee", 3)
        equal([output(call.exec()).tolist() for _ in range(3)], [[3]] * 3)

    def check_fields(self, request):
        """All that a request may say arrives."""
        call = request_to(
            "callee", 3, request_id="the id", correlation_id=7, flags=1, timeout=5_000_000,
            parameters={"a": 1, "b": "é", "c": True}, requested_output_names=["TWICE"],
        )
        equal(call.request_id(), "the id")
        equal(call.correlation_id(), 7)
        equal(call.flags(), 1)
        equal(call.timeout(), 5_000_000)
        equal(json.loads(call.parameters()), {"a": 1, "b": "é", "c": True})
        equal(call.requested_output_names(), {"TWICE"})
        equal([tensor.name() for tensor in call.inputs()], ["IN"])
        response = call.exec()
        equal([tensor.name() for tensor in response.output_tensors()], ["TWICE"])
        told = json.loads(response.parameters())
        equal(json.loads(told.pop("parameters")), {"a": 1, "b": "é", "c": True})
        equal(told, {"version": "2", "id": "the id", "flags": 1, "correlation_id": "7", "timeout": 5_000_000,
                     "outputs": '["TWICE"]'})

    def check_defaults(self, request):
        """A request that says nothing is one to the latest version, for all outputs."""
        told = json.loads(request_to("callee", 3).exec().parameters())
        equal(told, {"version": "2", "id": "", "flags": 0, "correlation_id": "0", "timeout": 0, "parameters": "{}",
                     "outputs": '["OUT", "TWICE"]'})

    def check_correlation_id_text(self, request):
        """A correlation id may be text, and the flags may be set later."""
        call = request_to("callee", 3, correlation_id="sequence")
        call.set_flags(2)
        told = json.loads(call.exec().parameters())
        equal((told["correlation_id"], told["flags"]), ('"sequence"', 2))

    def check_versions(self, request):
        """A version may be asked for."""
        for version in (1, 2):
            told = json.loads(request_to("callee", 3, model_version=version).exec().parameters())
            equal(told["version"], str(version))

    def check_preferred_memory_and_trace(self, request):
        """Outputs are in main memory whatever is preferred; a trace is passed on."""
        for kind in (pb_utils.TRITONSERVER_MEMORY_CPU, pb_utils.TRITONSERVER_MEMORY_GPU):
            response = request_to(
                "callee", 3, preferred_memory=pb_utils.PreferredMemory(kind, 0), trace=request.trace()
            ).exec()
            assert response.output_tensors()[0].is_cpu()

    def check_sender_of_the_callee(self, request):
        """The callee may answer by a sender."""
        equal(output(request_to("callee", 3, parameters={"act": "send_later"}).exec()).tolist(), [3])

    # Failures.

    def check_codes(self, request):
        """An error of the callee is in the response, with its code."""
        for name in ("UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED",
                     "ALREADY_EXISTS", "CANCELLED"):
            response = request_to("callee", 3, parameters={"act": "fail", "code": name}).exec()
            equal(error_of(response), (getattr(pb_utils.TritonError, name), "refused"))
            equal(response.parameters(), "{}")

    def check_callee_raises(self, request):
        """So is what it raises."""
        code, message = error_of(request_to("callee", 3, parameters={"act": "raise"}).exec())
        equal(code, pb_utils.TritonError.INTERNAL)
        start = "Failed to process the request(s) for model 'callee_0', message: ValueError: exploded"
        assert message.startswith(start), message

    def check_callee_forgets(self, request):
        """A callee that does not answer is an error, too."""
        code, message = error_of(request_to("callee", 3, parameters={"act": "forget"}).exec())
        equal(code, pb_utils.TritonError.INTERNAL)
        equal(message, "the model has let go of the request without a response")

    def check_unknown_model(self, request):
        """A model, or a version, that is not there is not ready."""
        def not_ready(name):
            return (pb_utils.TritonError.INTERNAL, f"Model {name} - Error when running inference: "
                    f"Failed for execute the inference request. Model '{name}' is not ready.")
        equal(error_of(request_to("nobody", 3).exec()), not_ready("nobody"))
        equal(error_of(request_to("callee", 3, model_version=9).exec()), not_ready("callee"))
        equal([error_of(each) for each in request_to("nobody", 3).exec(decoupled=True)], [not_ready("nobody")])

    def check_decoupled_model(self, request):
        """A decoupled model has to be called as one."""
        message = (
            "Model streams - Error when running inference: Model streams is using the decoupled. The current BLS "
            "request call doesn't support models using the decoupled transaction policy. Please use 'decoupled=True' "
            "argument to the 'exec' or 'async_exec' calls for decoupled models.'"
        )
        equal(error_of(request_to("streams", 3).exec()), (pb_utils.TritonError.INTERNAL, message))

    def check_bad_inputs(self, request):
        """A request that the callee cannot take is answered as any client's is."""
        invalid = pb_utils.TritonError.INVALID_ARG
        def refusal(*tensors, **options):
            return error_of(pb_utils.InferenceRequest(model_name="callee", inputs=list(tensors), **options).exec())
        for found, words in (
            (refusal(), "expected 1 inputs but got 0 inputs for model 'callee'"),
            (refusal(pb_utils.Tensor("IN", np.zeros(1, np.float32))), "inference input 'IN' data-type is 'FP32', but"),
            (refusal(pb_utils.Tensor("IN", np.zeros((1, 1), np.int64))), "unexpected shape for input 'IN' for model"),
            (refusal(pb_utils.Tensor("X", np.zeros(1, np.int64))), "unexpected inference input 'X' for model 'callee'"),
            (refusal(tensor(1), requested_output_names=["X"]), "unexpected inference output 'X' for model 'callee'"),
        ):
            equal(found[0], invalid)
            assert words in found[1], found

    def check_what_cannot_be_a_request(self, request):
        """A request that makes no sense is refused where it is made."""
        make = pb_utils.InferenceRequest
        def raised(**options):
            return raised_by(make, model_name="callee", **options)
        equal(raised(correlation_id=1.5), "TritonModelException: Correlation ID must be integer or string")
        equal(raised(inputs=[None], request_id="7"), "TritonModelException: Input tensor for request with id '7' and "
              "model name 'callee' should not be empty.")
        equal(raised(requested_output_names=[""]), "TritonModelException: Requested output name for request with id '' "
              "and model name 'callee' should not be empty.")
        equal(raised(parameters={"a": 1.5}), "TritonModelException: Expect parameters values to have type "
              "bool/int/str, found type <class 'float'>")
        equal(raised(parameters={1: 1}), "TritonModelException: Expect parameters keys to have type str, found type "
              "<class 'int'>")
        for options in ({"inputs": [1]}, {"flags": "1"}, {"timeout": -1}, {"model_version": None}):
            assert raised(**options).startswith("TypeError: "), options
        assert raised_by(make).startswith("TypeError: ")

    def check_request_that_came(self, request):
        """A request that a client sent is not the model's to execute."""
        assert raised_by(request.exec).startswith("TritonModelException: ")
        equal(raised_by(request_to("callee", 3).async_exec), "RuntimeError: no running event loop")

    # Contents.

    def check_datatypes(self, request):
        """Every datatype that numpy has."""
        for name, dtype in pb_utils.TRITON_STRING_TO_NUMPY.items():
            name = name[len("TYPE_"):]
            array = np.arange(100).astype(dtype) if name != "STRING" else np.array([b"", b"abc", "é".encode()], object)
            call = pb_utils.InferenceRequest(model_name="any", inputs=[pb_utils.Tensor(name, array)])
            found = output(call.exec(), "OUT_" + name)
            equal((found.dtype, found.tolist()), (array.dtype, array.tolist()))

    def check_all_datatypes_at_once(self, request):
        """Many inputs, and many outputs."""
        tensors = []
        for name, dtype in pb_utils.TRITON_STRING_TO_NUMPY.items():
            name = name[len("TYPE_"):]
            array = np.arange(7).astype(dtype) if name != "STRING" else np.array([b"abc"] * 7, object)
            tensors.append(pb_utils.Tensor(name, array))
        response = pb_utils.InferenceRequest(model_name="any", inputs=tensors).exec()
        for each in tensors:
            equal(output(response, "OUT_" + each.name()).tolist(), each.as_numpy().tolist())

    def check_bfloat16(self, request):
        """BF16, which numpy does not have, by DLPack."""
        class BFloat16:
            def __init__(self, contents):
                self.tensor = pb_utils.Tensor("x", contents)
            def __dlpack_device__(self):
                return self.tensor.__dlpack_device__()
            def __dlpack__(self, **options):
                return as_bfloat16(self.tensor.to_dlpack())
        contents = np.array([0x3F80, 0x4000, 0xC040], np.uint16)  # 1, 2, -3
        given = pb_utils.Tensor.from_dlpack("BF16", BFloat16(contents))
        equal(given.triton_dtype(), 14)
        response = pb_utils.InferenceRequest(model_name="any", inputs=[given]).exec()
        found = pb_utils.get_output_tensor_by_name(response, "OUT_BF16")
        equal((found.triton_dtype(), found.shape()), (14, [3]))
        equal(bits(found), contents.tolist())
        equal(raised_by(found.as_numpy), "TritonModelException: Tensor dtype is BF16 and cannot be converted to NumPy. "
              "Use to_dlpack() and from_dlpack() instead.")

    def check_empty(self, request):
        """Tensors without elements."""
        for name, dtype in pb_utils.TRITON_STRING_TO_NUMPY.items():
            name = name[len("TYPE_"):]
            call = pb_utils.InferenceRequest(model_name="any", inputs=[pb_utils.Tensor(name, np.zeros(0, dtype))])
            found = output(call.exec(), "OUT_" + name)
            equal((found.dtype, found.shape), (np.dtype(dtype), (0,)))

    def check_arrays_of_any_layout(self, request):
        """Arrays that do not lie in order, or are of another byte order."""
        line = np.arange(20)
        for array in (line[::2], line[::-1], line.reshape(4, 5)[:, 1], line.astype(">i8")):
            given = pb_utils.Tensor("INT64", array)
            found = output(pb_utils.InferenceRequest(model_name="any", inputs=[given]).exec(), "OUT_INT64")
            equal(found.tolist(), array.tolist())

    def check_sizes(self, request):
        """Sizes around every limit there may be."""
        for size in (1, 7, 8, 255, 4095, 4096, 4097, 65535, 65536, 65537, 131072, 1000003, 16 << 20):
            array = np.arange(size, dtype=np.uint32).astype(np.uint8)
            found = output(pb_utils.InferenceRequest(model_name="any", inputs=[pb_utils.Tensor("UINT8", array)]).exec(),
                           "OUT_UINT8")
            assert np.array_equal(found, array), size

    def check_large_bytes(self, request):
        """BYTES of more than a page, and of many elements."""
        for array in (np.array([b"x" * 200_000, b"", b"y" * 100_000], object), np.array([b"ab"] * 100_000, object)):
            call = pb_utils.InferenceRequest(model_name="any", inputs=[pb_utils.Tensor("STRING", array)])
            found = output(call.exec(), "OUT_STRING")
            equal(found.tolist() == array.tolist(), True)

    # Others' threads and loops.

    def check_threads(self, request):
        """Ten threads, a hundred calls each."""
        def call(number):
            for index in range(100):
                equal(output(request_to("callee", number, index).exec()).tolist(), [number, index])
        with ThreadPoolExecutor(10) as threads:
            for future in [threads.submit(call, number) for number in range(10)]:
                future.result()

    def check_threads_and_execute(self, request):
        """Threads, and execute itself at the same time."""
        with ThreadPoolExecutor(4) as threads:
            calls = [threads.submit(lambda number=number: request_to("callee", number).exec()) for number in range(100)]
            for number in range(100):
                equal(output(request_to("callee", number).exec()).tolist(), [number])
            equal([output(call.result()).tolist() for call in calls], [[number] for number in range(100)])

    def check_threads_with_iterators(self, request):
        """Each thread has its own iterator."""
        def call(number):
            iterator = request_to("streams", *[number] * 100).exec(decoupled=True)
            equal(outputs(iterator), [[number]] * 100)
        with ThreadPoolExecutor(8) as threads:
            for future in [threads.submit(call, number) for number in range(16)]:
                future.result()

    # Decoupled models.

    def check_iterator(self, request):
        """All responses, in order, and all of them again."""
        iterator = request_to("streams", *range(200)).exec(decoupled=True)
        assert iter(iterator) is iterator
        for _ in range(3):
            equal(outputs(iterator), [[number] for number in range(200)])

    def check_iterator_by_hand(self, request):
        """It is an iterator like any other."""
        iterator = request_to("streams", 5, 6).exec(decoupled=True)
        equal(output(next(iterator)).tolist(), [5])
        equal(output(next(iterator)).tolist(), [6])
        for _ in range(3):
            try:
                next(iterator)
            except StopIteration:
                pass
            else:
                raise AssertionError("it has no end")

    def check_iterator_goes_on(self, request):
        """A loop that was left goes on where it stopped."""
        iterator = request_to("streams", 5, 6, 7).exec(decoupled=True)
        for response in iterator:
            break
        equal(outputs(iterator), [[6], [7]])
        equal(outputs(iterator), [[5], [6], [7]])

    def check_empty_final(self, request):
        """An end that comes alone is a response without outputs."""
        iterator = request_to("streams", 5, 6, parameters={"alone": True}).exec(decoupled=True)
        found = list(iterator)
        equal(outputs(found[:2]), [[5], [6]])
        equal([(each.has_error(), each.output_tensors()) for each in found[2:]], [(False, [])])

    def check_no_response(self, request):
        """So a stream of nothing has one response."""
        (end,) = request_to("streams").exec(decoupled=True)
        equal((end.has_error(), end.output_tensors()), (False, []))

    def check_error_in_the_middle(self, request):
        """An error is a response like others."""
        found = list(request_to("streams", 5, -1, 7).exec(decoupled=True))
        equal([each.has_error() for each in found], [False, True, False])
        equal(error_of(found[1]), (pb_utils.TritonError.NOT_FOUND, "refused"))

    def check_model_that_is_not_decoupled(self, request):
        """Any model may be called in this way; it has one response."""
        equal(outputs(request_to("callee", 3).exec(decoupled=True)), [[3]])

    def wait_for_cancelled(self, count):
        path = self.repository + "/streams/cancelled"
        while not (os.path.exists(path) and os.path.getsize(path) >= count):
            time.sleep(0.001)
        os.remove(path)

    def check_cancel(self, request):
        """cancel is seen by the callee; what had come before is there, and there is an end."""
        iterator = request_to("streams", 5, parameters={"endless": True}).exec(decoupled=True)
        equal(output(next(iterator)).tolist(), [5])
        iterator.cancel()
        iterator.cancel()
        self.wait_for_cancelled(1)
        for response in iterator:
            assert not response.has_error()
        iterator.cancel()

    def check_dropped_half_way(self, request):
        """An iterator that nobody has any more is cancelled."""
        for _ in range(5):
            iterator = request_to("streams", 5, parameters={"endless": True}).exec(decoupled=True)
            equal(output(next(iterator)).tolist(), [5])
        del iterator
        self.wait_for_cancelled(5)
        equal(outputs(request_to("streams", 5, 6).exec(decoupled=True)), [[5], [6]])

    def check_iterators_at_once(self, request):
        """Many streams, read in turns."""
        iterators = [request_to("streams", *[number] * 100).exec(decoupled=True) for number in range(10)]
        for _ in range(100):
            equal([output(next(iterator)).tolist() for iterator in iterators], [[number] for number in range(10)])

    def check_calls_while_iterating(self, request):
        """Other calls between the responses."""
        for response in request_to("streams", *range(50)).exec(decoupled=True):
            equal(output(request_to("callee", 3).exec()).tolist(), [3])

    # Coroutines, from an execute that is a function.

    def check_coroutines(self, request):
        """All that coroutines may do works in an event loop of the model's own."""
        for name in COROUTINES:
            asyncio.run(globals()["check_" + name](self))

    def check_loop_in_a_thread(self, request):
        """And in one that runs in a thread of the model's own, as long as the model likes."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            for name in COROUTINES:
                asyncio.run_coroutine_threadsafe(globals()["check_" + name](self), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
'''
)
COROUTINES = '''
async def check_async_exec(self):
    """Awaited, it is the response."""
    equal(output(await request_to("callee", 3).async_exec()).tolist(), [3])
    response = await request_to("callee", 3, parameters={"act": "fail", "code": "NOT_FOUND"}).async_exec()
    equal(error_of(response), (pb_utils.TritonError.NOT_FOUND, "refused"))

async def check_gather(self):
    """Hundreds of calls at once."""
    found = await asyncio.gather(*(request_to("callee", number).async_exec() for number in range(300)))
    equal([output(each).tolist() for each in found], [[number] for number in range(300)])

async def check_gather_of_errors(self):
    """Some of them wrong."""
    names = ["callee" if number % 2 else "nobody" for number in range(20)]
    found = await asyncio.gather(*(request_to(name, 3).async_exec() for name in names))
    equal([each.has_error() for each in found], [name == "nobody" for name in names])

async def check_under_way_at_once(self):
    """A call is under way before it is awaited."""
    calls = [request_to("callee", number).async_exec() for number in range(10)]
    equal(output(await request_to("callee", 99).async_exec()).tolist(), [99])
    equal([output(await call).tolist() for call in reversed(calls)], [[number] for number in reversed(range(10))])

async def check_async_iterator(self):
    """Of a decoupled model one awaits the iterator."""
    iterator = await request_to("streams", 5, 6, 7).async_exec(decoupled=True)
    equal(outputs(iterator), [[5], [6], [7]])
    equal(outputs(iterator), [[5], [6], [7]])

async def check_gather_of_iterators(self):
    """Many of them."""
    calls = [request_to("streams", *[number] * 50).async_exec(decoupled=True) for number in range(20)]
    for number, iterator in enumerate(await asyncio.gather(*calls)):
        equal(outputs(iterator), [[number]] * 50)

async def check_exec_in_a_coroutine(self):
    """exec may be called in a coroutine, which it stops."""
    pending = request_to("callee", 4).async_exec()
    equal(output(request_to("callee", 3).exec()).tolist(), [3])
    equal(output(await pending).tolist(), [4])

async def check_cancelled_task(self):
    """A call that is cancelled raises, and hinders no other."""
    call = request_to("callee", 3).async_exec()
    other = request_to("callee", 4).async_exec()
    call.cancel()
    try:
        await call
    except asyncio.CancelledError:
        pass
    else:
        raise AssertionError("it was cancelled")
    equal(output(await other).tolist(), [4])

async def check_never_awaited(self):
    """A call that nobody awaits goes on all the same."""
    call = weakref.ref(request_to("slow", 3).async_exec())
    await asyncio.sleep(0)
    gc.collect()
    assert call() is not None
    call().cancel()
    equal(output(await request_to("callee", 4).async_exec()).tolist(), [4])

async def check_timeout(self):
    """asyncio's own timeouts work."""
    try:
        await asyncio.wait_for(request_to("slow", 3).async_exec(), 0.01)
    except asyncio.TimeoutError:
        pass
    else:
        raise AssertionError("it was in time")
    equal(output(await request_to("callee", 4).async_exec()).tolist(), [4])
'''
# Waits until it is told that nobody waits for it.
SLOW = """
class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        while not request.is_cancelled():
            time.sleep(0.001)
        return [pb_utils.InferenceResponse([])]
"""
# A DLPack tensor is told by its datatype code alone that it is bfloat16.
BFLOAT16 = """
import ctypes

def pointer_of(capsule):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, b"dltensor")

# data:8 device:8 ndim:4 then code:1 bits:1 lanes:2
def as_bfloat16(capsule):
    ctypes.c_uint8.from_address(pointer_of(capsule) + 20).value = 4
    return capsule

def bits(tensor):
    capsule = tensor.to_dlpack()
    at = pointer_of(capsule)
    assert ctypes.c_uint8.from_address(at + 20).value == 4
    data = ctypes.c_uint64.from_address(at).value + ctypes.c_uint64.from_address(at + 40).value
    return list((ctypes.c_uint16 * tensor.shape()[0]).from_address(data))
"""
ASYNC_MODEL = """
class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            await globals()["check_" + request.request_id()](self)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
                for request in requests]
"""
ASYNC_DECOUPLED_MODEL = """
class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            await globals()["check_" + request.request_id()](self)
            output = pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())
            request.get_response_sender().send(pb_utils.InferenceResponse([output]), 1)
"""


def names_of(code):
    """The checks in a model's code."""
    return re.findall(r"def check_(\w+)", code)


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    """A server of models that call, and of models that are called."""
    repository = tmp_path_factory.mktemp("bls")
    write_model(repository, "any", ANY, ANY_CONFIG)
    (write_model(repository, "callee", CALLEE, IN_TWO_OUT) / "2").symlink_to("1")
    write_model(repository, "streams", STREAMS, more=DECOUPLED)
    write_model(repository, "slow", SLOW)
    coroutines = f"{HELPERS}{COROUTINES}\nCOROUTINES = {names_of(COROUTINES)}\n"
    write_model(repository, "caller", coroutines + BFLOAT16 + CHECKS)
    write_model(repository, "async", coroutines + ASYNC_MODEL)
    write_model(repository, "async_decoupled", coroutines + ASYNC_DECOUPLED_MODEL, more=DECOUPLED)
    with serving(repository) as server:
        yield server


@pytest.mark.parametrize("check", names_of(CHECKS))
def test_calls(server, check):
    """See the check's own sentence."""
    assert server.infer("caller", INPUT, request_id=check).as_numpy("OUT").tolist() == [1, 2]


@pytest.mark.parametrize("check", names_of(COROUTINES))
def test_coroutines(server, check):
    """See the check's own sentence; in `async def execute`."""
    assert server.infer("async", INPUT, request_id=check).as_numpy("OUT").tolist() == [1, 2]


@pytest.mark.parametrize("check", names_of(COROUTINES))
def test_coroutines_of_decoupled_models(server, check):
    """See the check's own sentence; in an `async def execute` that runs in the background, several at a time."""
    with ThreadPoolExecutor(4) as clients:
        found = [clients.submit(server.stream, "async_decoupled", IN=[1, 2], id=check) for _ in range(4)]
        assert [[event.get("OUT", event) for event in each.result()] for each in found] == [[[1, 2]]] * 4


# Answers each request only when four have come, and each with two responses.
TOGETHER = """
class TritonPythonModel:
    def initialize(self, args):
        self.together = threading.Barrier(4)

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request.get_response_sender(), request.inputs()[0])).start()

    def answer(self, sender, tensor):
        self.together.wait()
        for _ in range(2):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy())]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Each request is a coroutine of its own in one event loop; in each, a plain loop takes the responses.
ITERATES = """
class TritonPythonModel:
    async def execute(self, requests):
        (request,) = requests
        call = pb_utils.InferenceRequest(
            model_name="together", inputs=[request.inputs()[0]], requested_output_names=["OUT"]
        )
        responses = await call.async_exec(decoupled=True)
        total = sum(each.output_tensors()[0].as_numpy() for each in responses if each.output_tensors())
        sender = request.get_response_sender()
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", total)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_awaiting_a_decoupled_call_leaves_the_event_loop_free(model, serve):
    """`await async_exec(decoupled=True)` ends with the first response, so that other requests go on until then."""
    model("together", TOGETHER, more=DECOUPLED)
    model("iterates", ITERATES, more=DECOUPLED)
    server = serve()
    with ThreadPoolExecutor(4) as clients:
        events = list(clients.map(lambda number: server.stream("iterates", IN=[number]), range(4)))
    assert [[event["OUT"] for event in each] for each in events] == [[0], [2], [4], [6]]

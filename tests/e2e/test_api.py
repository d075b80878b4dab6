# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Every item of `triton_python_backend_utils`, used once by a model in a real stub.

Each check is a function in a model and goes by the numbers of its items, those of the table in
docs/reference/compatibility.md; the request's id names it. A check that fails is an exception of execute, which the
client reads. Other tests cover the items in depth: this one covers that each of them exists.
"""

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

INPUT = {"IN": np.array([1, 2])}
CALLEE = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = request.inputs()[0].as_numpy()
            if array[0] < 0:
                error = pb_utils.TritonError("refused", pb_utils.TritonError.NOT_FOUND)
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            parameters = {"flags": request.flags(), "timeout": request.timeout(), "id": request.request_id()}
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)], parameters=parameters))
        return responses
"""
STREAMS = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in request.inputs()[0].as_numpy():
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number]))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
AGAIN = """
class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return [None]
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])]
"""
API = '''
import asyncio, c_python_backend_utils

def equal(found, expected):
    assert found == expected, (found, expected)

def raised_by(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    raise AssertionError("nothing was raised")

def refused(*arguments, **options):
    raised = raised_by(*arguments, **options)
    assert raised.startswith("TritonModelException: "), raised
    return raised[len("TritonModelException: "):]

def call(model="callee", numbers=(3, 4), **options):
    tensor = pb_utils.Tensor("IN", np.array(numbers, np.int64))
    return pb_utils.InferenceRequest(model_name=model, inputs=[tensor], **options)

def config(**members):
    return pb_utils.ModelConfig(json.dumps({"name": "m", **members}))

class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.config = json.loads(args["model_config"])

    def execute(self, requests):
        responses = []
        for request in requests:
            response = getattr(self, "check_" + request.request_id().partition(" ")[0])(request)
            if not isinstance(response, pb_utils.InferenceResponse) and response != "sent":
                response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
            responses.append(None if response == "sent" else response)
        return responses

    # Functions.

    def check_A1(self, request):
        """serialize_byte_tensor"""
        encode = pb_utils.serialize_byte_tensor
        equal(encode(np.array([b"ab", "é", 7], object)), b"\\x02\\0\\0\\0ab\\x02\\0\\0\\0\\xc3\\xa9\\x01\\0\\0\\x007")
        equal(encode(np.array([b"ab"], np.bytes_)), b"\\x02\\0\\0\\0ab")
        equal(encode(np.array([], object)), ())
        equal(encode(np.array([1])), None)

    def check_A2(self, request):
        """deserialize_bytes_tensor"""
        found = pb_utils.deserialize_bytes_tensor(b"\\x02\\0\\0\\0ab\\0\\0\\0\\0")
        equal((found.dtype, found.tolist()), (np.dtype(object), [b"ab", b""]))

    def check_A3(self, request):
        """get_input_tensor_by_name"""
        equal(pb_utils.get_input_tensor_by_name(request, "IN").name(), "IN")
        equal(pb_utils.get_input_tensor_by_name(request, "NOBODY"), None)

    def check_A4(self, request):
        """get_output_tensor_by_name"""
        response = call().exec()
        equal(pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy().tolist(), [3, 4])
        equal(pb_utils.get_output_tensor_by_name(response, "NOBODY"), None)

    def check_A5(self, request):
        """get_input_config_by_name"""
        equal(pb_utils.get_input_config_by_name(self.config, "IN")["data_type"], "TYPE_INT64")
        equal(pb_utils.get_input_config_by_name(self.config, "NOBODY"), None)

    def check_A6(self, request):
        """get_output_config_by_name"""
        equal(pb_utils.get_output_config_by_name(self.config, "OUT")["data_type"], "TYPE_INT64")
        equal(pb_utils.get_output_config_by_name(self.config, "NOBODY"), None)

    def check_A7(self, request):
        """using_decoupled_model_transaction_policy"""
        decoupled = pb_utils.using_decoupled_model_transaction_policy
        equal(decoupled(self.config), False)
        equal(decoupled({"model_transaction_policy": {"decoupled": True}}), True)
        equal(decoupled({}), False)

    def check_A8(self, request):
        """triton_to_numpy_type"""
        found = [pb_utils.triton_to_numpy_type(number) for number in range(1, 15)]
        equal(found, [np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64,
                      np.float16, np.float32, np.float64, np.object_, None])

    def check_A9(self, request):
        """numpy_to_triton_type"""
        for number in range(1, 14):
            equal(pb_utils.numpy_to_triton_type(pb_utils.triton_to_numpy_type(number)), number)
        equal(pb_utils.numpy_to_triton_type(np.bytes_), 13)

    def check_A10(self, request):
        """triton_string_to_numpy"""
        equal(pb_utils.triton_string_to_numpy("TYPE_FP32"), np.float32)
        equal(raised_by(pb_utils.triton_string_to_numpy, "TYPE_BF16"), "KeyError: 'TYPE_BF16'")

    # Constants.

    def check_A11_to_A15(self, request):
        """TRITONSERVER_REQUEST_FLAG_*, TRITONSERVER_RESPONSE_COMPLETE_FINAL, TRITONSERVER_REQUEST_RELEASE_*"""
        equal(pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, 1)
        equal(pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END, 2)
        equal(pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL, 1)
        equal(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL, 1)
        equal(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, 2)

    def check_A16_to_A17(self, request):
        """TRITONSERVER_MEMORY_GPU, TRITONSERVER_MEMORY_CPU"""
        kinds = pb_utils.TRITONSERVER_MEMORY_GPU, pb_utils.TRITONSERVER_MEMORY_CPU
        assert kinds[0] != kinds[1]
        assert {type(kind) for kind in kinds} == {c_python_backend_utils.MemoryType}

    def check_A18(self, request):
        """TRITON_STRING_TO_NUMPY"""
        equal(len(pb_utils.TRITON_STRING_TO_NUMPY), 13)
        equal(pb_utils.TRITON_STRING_TO_NUMPY["TYPE_STRING"], np.object_)

    # ModelConfig.

    def check_A19_to_A20(self, request):
        """ModelConfig, as_dict"""
        made = pb_utils.ModelConfig(self.args["model_config"])
        equal(made.as_dict(), self.config)
        assert made.as_dict() is made.as_dict()

    def check_A21(self, request):
        """ModelConfig.set_max_batch_size"""
        made = config(max_batch_size=4)
        made.set_max_batch_size(8)
        equal(made.as_dict()["max_batch_size"], 8)
        equal(raised_by(made.set_max_batch_size, 2), "ValueError: configuration specified max_batch_size 8, but in "
              "auto-complete-config function for model 'm' specified max_batch_size 2")

    def check_A22(self, request):
        """ModelConfig.set_dynamic_batching"""
        made = config()
        made.set_dynamic_batching()
        made.set_dynamic_batching()
        assert "dynamic_batching" in made.as_dict()
        equal(raised_by(config(sequence_batching={}).set_dynamic_batching), "ValueError: Configuration specified "
              "scheduling_choice as 'sequence_batching', but auto-complete-config function for model 'm' tries to set "
              "scheduling_choice as 'dynamic_batching'")

    def check_A23(self, request):
        """ModelConfig.add_input"""
        made = config()
        for _ in range(2):
            made.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [2], "optional": True})
        equal(made.as_dict()["input"], [{"name": "X", "data_type": "TYPE_FP32", "dims": [2], "optional": True}])
        equal(raised_by(made.add_input, {"name": "X", "dims": [2]}), "ValueError: input 'X' in auto-complete-config "
              "function for model 'm' is missing 'data_type' property.")
        assert "expects datatype" in raised_by(made.add_input, {"name": "X", "data_type": "TYPE_INT8", "dims": [2]})

    def check_A24(self, request):
        """ModelConfig.add_output"""
        made = config()
        made.add_output({"name": "X", "data_type": "TYPE_FP32", "dims": [2]})
        equal(made.as_dict()["output"], [{"name": "X", "data_type": "TYPE_FP32", "dims": [2]}])
        assert "other than 'name', 'data_type' and 'dims'" in raised_by(
            made.add_output, {"name": "X", "data_type": "TYPE_FP32", "dims": [2], "optional": True})

    def check_A25(self, request):
        """ModelConfig.set_model_transaction_policy"""
        made = config()
        made.set_model_transaction_policy({"decoupled": True})
        equal(made.as_dict()["model_transaction_policy"], {"decoupled": True})
        equal(raised_by(made.set_model_transaction_policy, {"decoupled": False}), "ValueError: trying to change "
              "decoupled property in auto-complete-config for model 'm', which is already set to 'True'.")

    # TritonError, TritonModelException.

    def check_A26_to_A28(self, request):
        """TritonError, code, message"""
        error = pb_utils.TritonError("words")
        equal((error.message(), error.code()), ("words", pb_utils.TritonError.INTERNAL))
        equal(pb_utils.TritonError("words", pb_utils.TritonError.NOT_FOUND).code(), pb_utils.TritonError.NOT_FOUND)
        assert not isinstance(error, BaseException)
        for wrong in ((None,), ("words", None)):
            assert raised_by(pb_utils.TritonError, *wrong).startswith("TypeError: ")

    def check_A29_to_A36(self, request):
        """TritonError.UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED"""
        names = ("UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS",
                 "CANCELLED")
        equal([int(getattr(pb_utils.TritonError, name)) for name in names], list(range(8)))
        assert raised_by(setattr, pb_utils.TritonError, "UNKNOWN", 1).startswith("AttributeError: ")

    def check_A37(self, request):
        """TritonModelException"""
        try:
            raise pb_utils.TritonModelException("words")
        except pb_utils.TritonModelException as exc:
            equal(str(exc), "words")

    # Tensor.

    def check_A38(self, request):
        """Tensor"""
        equal(pb_utils.Tensor("X", np.arange(20)[::2]).as_numpy().tolist(), list(range(0, 20, 2)))
        equal(refused(pb_utils.Tensor, "", np.zeros(1)), "Tensor name cannot be an empty string.")
        equal(refused(pb_utils.Tensor, "X", np.zeros(1, complex)), "NumPy dtype is not supported.")
        assert raised_by(pb_utils.Tensor, name="X", numpy_array=np.zeros(1)).startswith("TypeError: ")

    def check_A39_to_A43(self, request):
        """Tensor.name, as_numpy, triton_dtype, shape, is_cpu"""
        for tensor in (request.inputs()[0], pb_utils.Tensor("IN", np.array([1, 2]))):
            equal(tensor.name(), "IN")
            equal(tensor.as_numpy().tolist(), [1, 2])
            assert tensor.as_numpy().flags.writeable
            equal(tensor.triton_dtype(), 9)
            equal(tensor.shape(), [2])
            equal(tensor.is_cpu(), True)

    def check_A44_to_A45(self, request):
        """Tensor.to_dlpack, from_dlpack"""
        capsule = request.inputs()[0].to_dlpack()
        assert '"dltensor"' in repr(capsule)
        found = pb_utils.Tensor.from_dlpack("X", capsule)
        equal((found.name(), found.as_numpy().tolist()), ("X", [1, 2]))
        assert '"used_dltensor"' in repr(capsule) or '"used_dlpack"' in repr(capsule), capsule
        equal(pb_utils.Tensor.from_dlpack("X", np.arange(3)).as_numpy().tolist(), [0, 1, 2])
        equal(refused(pb_utils.Tensor("X", np.array([b"a"], object)).to_dlpack),
              "DLPack does not have support for string tensors.")
        equal(refused(pb_utils.Tensor.from_dlpack, "X", np.arange(9).reshape(3, 3).T), "DLPack tensor is not "
              "contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported.")
        equal(refused(pb_utils.Tensor.from_dlpack, "", np.arange(3)), "Tensor name cannot be an empty string.")

    def check_A46_to_A47(self, request):
        """Tensor.__dlpack__, __dlpack_device__"""
        tensor = request.inputs()[0]
        equal(tuple(tensor.__dlpack_device__()), (1, 0))
        assert '"dltensor"' in repr(tensor.__dlpack__())
        assert '"dltensor"' in repr(tensor.__dlpack__(stream=None))
        equal(np.from_dlpack(tensor).tolist(), [1, 2])

    # InferenceRequest.

    def check_A48(self, request):
        """InferenceRequest"""
        made = pb_utils.InferenceRequest(
            "id", 7, [pb_utils.Tensor("IN", np.zeros(1))], ["OUT"], "callee", 1, 3, 5,
            pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU), request.trace(), {"a": True},
        )
        equal((made.request_id(), made.correlation_id(), made.flags(), made.timeout()), ("id", 7, 3, 5))
        assert raised_by(call, parameters={"a": 1.5}).startswith("TritonModelException: Expect parameters values to")

    def check_A49_to_A52(self, request):
        """InferenceRequest.inputs, request_id, correlation_id, requested_output_names"""
        equal([tensor.name() for tensor in request.inputs()], ["IN"])
        equal(request.request_id(), "A49_to_A52")
        equal(request.correlation_id(), 0)
        equal(request.requested_output_names(), {"OUT"})
        equal(type(request.requested_output_names()), set)
        equal(call(correlation_id="text").correlation_id(), "text")

    def check_A53_to_A56(self, request):
        """InferenceRequest.flags, set_flags, timeout, parameters"""
        equal((request.flags(), request.timeout(), request.parameters()), (0, 0, "{}"))
        made = call(timeout=5, parameters={"a": "b"})
        made.set_flags(3)
        equal((made.flags(), made.timeout(), json.loads(made.parameters())), (3, 5, {"a": "b"}))
        found = json.loads(made.exec().parameters())
        equal((found["flags"], found["timeout"]), (3, 5))

    def check_A57(self, request):
        """InferenceRequest.trace"""
        equal(type(request.trace()), c_python_backend_utils.InferenceTrace)
        assert not call(trace=request.trace()).exec().has_error()

    def check_A58(self, request):
        """InferenceRequest.exec"""
        equal(call().exec().output_tensors()[0].as_numpy().tolist(), [3, 4])
        error = call(numbers=[-1]).exec().error()
        equal((error.code(), error.message()), (pb_utils.TritonError.NOT_FOUND, "refused"))

    def check_A59(self, request):
        """InferenceRequest.async_exec"""
        equal(raised_by(call().async_exec), "RuntimeError: no running event loop")
        async def calls():
            return await asyncio.gather(*(call(numbers=[number]).async_exec() for number in range(10)))
        found = asyncio.run(calls())
        equal([each.output_tensors()[0].as_numpy().tolist() for each in found], [[number] for number in range(10)])

    def check_A60(self, request):
        """InferenceRequest.get_response_sender"""
        sender = request.get_response_sender()
        equal(type(sender), c_python_backend_utils.InferenceResponseSender)
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1, 2]))]), 1)
        return "sent"

    def check_A61(self, request):
        """InferenceRequest.is_cancelled"""
        equal((request.is_cancelled(), call().is_cancelled()), (False, False))

    def check_A62(self, request):
        """InferenceRequest.set_release_flags"""
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)
        assert raised_by(request.set_release_flags, flags=1).startswith("TypeError: ")
        equal(call("again").exec().output_tensors()[0].as_numpy().tolist(), [3, 4])

    # The other classes.

    def check_A63(self, request):
        """PreferredMemory"""
        for kind in (pb_utils.TRITONSERVER_MEMORY_CPU, pb_utils.TRITONSERVER_MEMORY_GPU):
            memory = pb_utils.PreferredMemory(preferred_memory_type=kind, preferred_device_id=0)
            assert call(preferred_memory=memory).exec().output_tensors()[0].is_cpu()

    def check_A64(self, request):
        """InferenceTrace.get_context"""
        equal(request.trace().get_context(), None)

    def check_A65_to_A69(self, request):
        """InferenceResponse, output_tensors, has_error, error, parameters"""
        tensor = pb_utils.Tensor("OUT", np.array([1, 2]))
        made = pb_utils.InferenceResponse(output_tensors=[tensor], parameters={"a": 1})
        equal((made.output_tensors(), made.has_error(), made.error()), ([tensor], False, None))
        equal(json.loads(made.parameters()), {"a": 1})
        failed = pb_utils.InferenceResponse([tensor], error=pb_utils.TritonError("no"), parameters={"a": 1})
        equal((failed.output_tensors(), failed.has_error(), failed.error().message()), ([], True, "no"))
        equal(refused(pb_utils.InferenceResponse, [None]), "Output tensor for inference response should not be empty.")
        return made

    def check_A70_to_A71(self, request):
        """InferenceResponseSender.send, is_cancelled"""
        sender = request.get_response_sender()
        equal(sender.is_cancelled(), False)
        response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1, 2]))])
        equal(refused(sender.send, response, 2), "Unable to send response. Unsupported flag provided.")
        sender.send(response=response)
        equal(refused(sender.send, response),
              "Unable to send response. Non-decoupled model cannot send more than one response.")
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        equal(refused(sender.send, response), "Unable to send response. Response sender has been closed.")
        return "sent"

    def check_A72_to_A75(self, request):
        """ResponseIterator, __iter__, __next__, cancel"""
        iterator = call("streams", [5, 6, 7]).exec(decoupled=True)
        equal(type(iterator), c_python_backend_utils.ResponseIterator)
        equal(next(iterator).output_tensors()[0].as_numpy().tolist(), [5])
        for _ in iterator:
            pass
        found = [[tensor.as_numpy().tolist() for tensor in each.output_tensors()] for each in iter(iterator)]
        equal(found, [[[5]], [[6]], [[7]], []])
        iterator.cancel()
        made = c_python_backend_utils.ResponseIterator(pb_utils.InferenceResponse([]))
        equal([each.has_error() for each in made], [False])

    def check_A76_to_A84(self, request):
        """Logger.log, log_info, log_warn, log_error, log_verbose, INFO, WARNING, ERROR, VERBOSE"""
        logger = pb_utils.Logger
        logger.log("plainly logged")
        for level in ("INFO", "WARNING", "ERROR", "VERBOSE"):
            logger.log(f"logged as {level}", getattr(logger, level))
        logger.log_info("an information")
        logger.log_warn("a warning")
        logger.log_error("an error")
        logger.log_verbose("a detail")

    def check_A85_to_A88(self, request):
        """MetricFamily, COUNTER, GAUGE, HISTOGRAM"""
        families = [
            pb_utils.MetricFamily(name=f"family_{kind}", description="words", kind=getattr(pb_utils.MetricFamily, kind))
            for kind in ("COUNTER", "GAUGE", "HISTOGRAM")
        ]
        for kind in ("COUNTER", "GAUGE", "HISTOGRAM"):
            equal(getattr(pb_utils.MetricFamily, kind), getattr(c_python_backend_utils.MetricKind, kind))
        assert raised_by(pb_utils.MetricFamily, "family_COUNTER", "words", pb_utils.MetricFamily.GAUGE).startswith(
            "TritonModelException: Failed to create metric family.")
        assert raised_by(pb_utils.MetricFamily, "family", "words", 7).startswith("TypeError: ")

    def check_A89(self, request):
        """MetricFamily.Metric"""
        family = pb_utils.MetricFamily("labelled", "words", pb_utils.MetricFamily.COUNTER)
        first, second = family.Metric(labels={"a": "b"}), family.Metric({"a": "b"})
        first.increment(2)
        equal(second.value(), 2)
        equal(refused(family.Metric, labels=7), "Failed to create metric. Labels must be a dictionary.")
        equal(refused(family.Metric, buckets=[1]), "Failed to create metric. Unexpected buckets found.")
        histogram = pb_utils.MetricFamily("measured", "words", pb_utils.MetricFamily.HISTOGRAM)
        equal(refused(histogram.Metric), "Failed to create metric. Missing required buckets.")
        equal(refused(histogram.Metric, buckets=1), "Failed to create metric. Buckets must be a list.")

    def check_A90_to_A93(self, request):
        """Metric.increment, set, observe, value"""
        kinds = pb_utils.MetricFamily
        counters, gauges = kinds("counted", "words", kinds.COUNTER), kinds("set", "words", kinds.GAUGE)
        histograms = kinds("observed", "words", kinds.HISTOGRAM)
        counter, gauge, histogram = counters.Metric(), gauges.Metric(), histograms.Metric(buckets=[1.0, 2.0])
        counter.increment(2.5)
        equal(counter.value(), 2.5)
        gauge.set(7)
        gauge.increment(-3)
        equal(gauge.value(), 4)
        histogram.observe(1.5)
        equal(refused(counter.increment, -1), "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can "
              "only be incremented monotonically by non-negative values.")
        assert refused(counter.set, 1).startswith("Failed to set metric value: ")
        assert refused(gauge.observe, 1).startswith("Failed to observe metric value: ")
        assert refused(histogram.value).startswith("Failed to get metric value: ")
        del counters
        equal(refused(counter.value), "Failed to get metric value: Invalid metric operation as the corresponding "
              "'MetricFamily' has been deleted. The 'MetricFamily' object should be deleted AFTER its corresponding "
              "'Metric' objects have been deleted.")

    def check_A94_to_A96(self, request):
        """load_model, unload_model, is_model_ready"""
        equal(pb_utils.is_model_ready(model_name="spare"), False)
        assert call("spare").exec().has_error()
        pb_utils.load_model(model_name="spare")
        equal(pb_utils.is_model_ready("spare", "1"), True)
        equal(pb_utils.is_model_ready("spare", model_version="2"), False)
        equal(call("spare").exec().output_tensors()[0].as_numpy().tolist(), [3, 4])
        pb_utils.unload_model("spare", unload_dependents=False)
        while pb_utils.is_model_ready("spare"):
            time.sleep(0.001)
        files = {"file:1/model.py": b"import triton_python_backend_utils as pb_utils\\n"
                 b"class TritonPythonModel:\\n"
                 b"    def execute(self, requests):\\n"
                 b"        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', -each.inputs()[0].as_numpy())])"
                 b" for each in requests]\\n"}
        tensors = [{"name": name, "data_type": "TYPE_INT64", "dims": [-1]} for name in ("IN", "OUT")]
        text = json.dumps({"backend": "python", "input": tensors[:1], "output": tensors[1:]})
        pb_utils.load_model("spare", config=text, files=files)
        equal(call("spare").exec().output_tensors()[0].as_numpy().tolist(), [-3, -4])
        pb_utils.unload_model("spare")
        while pb_utils.is_model_ready("spare"):
            time.sleep(0.001)
        assert refused(pb_utils.load_model, "nobody").startswith("Failed to load model: ")
        equal(refused(pb_utils.load_model, "spare", files=7),
              "failed to load model 'spare', files should be a dictionary of file paths and file contents")
        equal(refused(pb_utils.is_model_ready, "spare", "x"), "Failed to check model readiness: failed to get model "
              "version from specified version string 'x', version should be an integral value > 0")

    def check_A97(self, request):
        """get_model_dir"""
        equal(pb_utils.get_model_dir(), os.path.join(self.args["model_repository"], self.args["model_version"]))
        assert os.path.samefile(pb_utils.get_model_dir(), os.path.dirname(__file__))

    def check_A98(self, request):
        """async_event_future_done_callback"""
        async def fail():
            raise ValueError("exploded in a coroutine")
        async def run():
            task = asyncio.ensure_future(fail())
            task.add_done_callback(c_python_backend_utils.async_event_future_done_callback)
            await asyncio.wait([task])
        asyncio.run(run())

    def check_A99(self, request):
        """SharedMemory.free_memory"""
        before = pb_utils.shared_memory.free_memory()
        assert before > 0
        call().exec()
        equal(pb_utils.shared_memory.free_memory(), before)
'''


def checks():
    """The checks in the model."""
    return re.findall(r"def check_(\w+)", API)


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    """A server of the model with the checks, and of those that they need; `spare` is not loaded."""
    repository = tmp_path_factory.mktemp("api")
    write_model(repository, "api", API)
    write_model(repository, "callee", CALLEE)
    write_model(repository, "spare", CALLEE)
    write_model(repository, "streams", STREAMS, more=DECOUPLED)
    write_model(repository, "again", AGAIN, more="sequence_batching { iterative_sequence: true }")
    loaded = [f"--load-model={name}" for name in ("api", "callee", "streams", "again")]
    with serving(repository, "--model-control-mode=explicit", "--log-verbose=1", *loaded) as server:
        yield server


def test_nothing_is_left_out():
    """The checks are those of 99 items, each once."""
    numbers = []
    for check in checks():
        first, _, last = check.partition("_to_")
        numbers += range(int(first[1:]), int((last or first)[1:]) + 1)
    assert numbers == list(range(1, 100))


@pytest.mark.parametrize("check", checks())
def test_item(server, check):
    """The items with these numbers; the check names them."""
    assert server.infer("api", INPUT, request_id=check).as_numpy("OUT").tolist() == [1, 2]


def test_all_at_once(server):
    """The same, from many clients."""
    with ThreadPoolExecutor(8) as clients:
        found = [
            clients.submit(server.infer, "api", INPUT, request_id=f"{check} {number}")
            for number in range(5)
            for check in checks()
            # These look at what others change meanwhile, or at the id.
            if check not in ("A49_to_A52", "A89", "A90_to_A93", "A94_to_A96", "A99")
        ]
        for each in found:
            assert each.result().as_numpy("OUT").tolist() == [1, 2]


def test_what_was_logged(server, wait_until):
    """Lines of the Logger, and of what failed in a coroutine, are in the log, with their levels and places."""
    server.infer("api", INPUT, request_id="A76_to_A84")
    server.infer("api", INPUT, request_id="A98")
    for level, text in (
        ("I", "plainly logged"),
        ("I", "logged as INFO"),
        ("W", "logged as WARNING"),
        ("E", "logged as ERROR"),
        ("V", "logged as VERBOSE"),
        ("I", "an information"),
        ("W", "a warning"),
        ("E", "an error"),
        ("V", "a detail"),
    ):
        line = rf"^{level}.* \S*/api/1/model\.py:\d+\] api_0: {text}$"
        wait_until(lambda line=line: re.search(line, server.log, re.M))
    wait_until(lambda: "ValueError: exploded in a coroutine" in server.log)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend "vllm", in this process, with tests/stand_ins/vllm in place of vLLM."""

import asyncio
import dataclasses
import importlib.util
import inspect
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pyruntime.backends.toolkit.parameters import convert_parameters
from pyruntime.backends.vllm.arguments import choose_adapter, visible_device
from pyruntime.backends.vllm.metrics import steps_of_1_2_5
from pyruntime.testing import Request
from pyruntime.utils.errors import Code, ConfigError, LoadError
from pyruntime.utils.flow_control import RESPONSES_AHEAD_MAX

STAND_INS = Path(__file__).resolve().parents[1] / "stand_ins"
BACKEND = 'backend: "vllm"\n'
INTERFACE = json.loads((STAND_INS / "vllm.json").read_text())
# The classes that the backend imports; all others are those of objects that it is given.
MODULES = ("exceptions", "lora.request", "sampling_params", "v1.engine.async_llm", "v1.engine.exceptions")
MODULES += ("v1.metrics.loggers",)
IMPORTED = [name for name in INTERFACE if name.rpartition(".")[0] in [f"vllm.{each}" for each in MODULES]]


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.syspath_prepend(str(STAND_INS))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path):
    """`folder(config, file=object)`: a model's folder, with files of its version as JSON."""

    def write(more="", **files):
        version = tmp_path / "m" / "1"
        version.mkdir(parents=True, exist_ok=True)
        (tmp_path / "m" / "config.pbtxt").write_text(BACKEND + more)
        for name, content in ({"model": {"model": "tiny"}} | files).items():
            if content is not None:
                (version / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
        return version.parent

    return write


@pytest.fixture
def load(stand_in, folder, load_model):
    return lambda *args, **files: load_model(folder(*args, **files))


def text(value):
    return np.array([value], object)


def texts(response, name="text_output"):
    return [each.decode() for each in response[name].tolist()]


def parameters(**values):
    entry = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'
    return "".join(entry.format(*item) for item in values.items())


class TestConfiguration:
    def test_completion(self, load):
        """The inputs and outputs are those of Triton's backend; the model is decoupled and makes its own batches."""
        config = load().config
        assert [each["name"] for each in config["input"]] == [
            "text_input",
            "image",
            "stream",
            "sampling_parameters",
            "exclude_input_in_output",
            "return_finish_reason",
            "return_cumulative_logprob",
            "return_logprobs",
            "return_num_input_tokens",
            "return_num_output_tokens",
        ]
        assert [each["optional"] for each in config["input"]] == [False, *[True] * 9]
        assert [(each["name"], each["dims"]) for each in config["output"]] == [
            ("text_output", [-1]),
            ("finish_reason", [-1]),
            ("cumulative_logprob", [-1]),
            ("logprobs", [-1]),
            ("num_input_tokens", [1]),
            ("num_output_tokens", [-1]),
        ]
        assert config["model_transaction_policy"] == {"decoupled": True}
        assert config["max_batch_size"] == 0

    def test_tensors_of_the_configuration(self, load):
        """Configured tensors stay, the others are added."""
        config = load('input { name: "stream" data_type: TYPE_BOOL dims: [ -1 ] optional: true }\n').config
        assert config["input"][0]["dims"] == [-1]
        assert len(config["input"]) == 10

    def test_contradictions(self, load):
        """A policy or a batch size that the backend cannot have is refused."""
        with pytest.raises(LoadError, match="trying to change decoupled property"):
            load("model_transaction_policy { decoupled: false }\n")

    def test_engine_arguments(self, load):
        """model.json has the arguments of the engine; a model may be a folder of the version."""
        model = load(model={"model": "weights", "max_model_len": 7, "disable_log_requests": True})
        args = model.instance._engine.args
        assert (args.model, args.max_model_len, args.enable_log_requests) == ("weights", 7, False)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "model.json' with the arguments of the vLLM engine, a JSON object$"),
            ("{", "model.json' is not valid JSON: "),
            ([], "model.json' must be a JSON object with the arguments"),
            ({"modl": 1}, "vLLM refuses its arguments in model.json: .*unexpected keyword argument 'modl'"),
            ({"model": "m", "enable_lora": True}, "multi_lora.json' with the folders of LoRA adapters"),
        ],
    )
    def test_files_that_are_wrong(self, load, content, message):
        """The message names the file and what it must have."""
        with pytest.raises(LoadError, match=message):
            load(model=content)

    def test_without_vllm(self, folder, load_model):
        """The message says what to install."""
        if importlib.util.find_spec("vllm") is not None:
            pytest.skip("vllm is installed")
        with pytest.raises(LoadError, match=r"Install it there \(pip install pyruntime\[vllm\], or pip install vllm\)"):
            load_model(folder())

    def test_devices(self):
        """An instance's GPU is one of those that the server may use."""
        assert [visible_device(None, 1), visible_device("4,5", 1), visible_device(" GPU-a ,GPU-b", 0)] == [
            "1",
            "5",
            "GPU-a",
        ]
        with pytest.raises(ConfigError, match="configured for GPU 1, but CUDA_VISIBLE_DEVICES is '4'"):
            visible_device("4", 1)


class TestStandIn:
    """The stand-in against vllm.json, which has what the source of vLLM says of the classes that the backend uses."""

    def fields(self, name):
        return set(INTERFACE[name]["fields"])

    def test_version(self, stand_in):
        """The stand-in is as the version of vLLM whose source was read."""
        assert importlib.import_module("vllm").__version__ == INTERFACE["version"]

    @pytest.mark.parametrize("name", IMPORTED)
    def test_classes(self, stand_in, name):
        """A class of the stand-in has no field, method or parameter that vLLM's has not, and the same exceptions."""
        module, _, called = name.rpartition(".")
        of_class = getattr(importlib.import_module(module), called)
        assert set(getattr(of_class, "__annotations__", ())) <= self.fields(name)
        if issubclass(of_class, Exception):
            assert [base.__name__ for base in of_class.__bases__] == INTERFACE[name]["bases"]
        for method, text_of_parameters in INTERFACE[name]["methods"].items():
            real = inspect.signature(eval(f"lambda {text_of_parameters}: 0")).parameters
            mine = inspect.signature(inspect.getattr_static(of_class, method).__get__(0, of_class)).parameters
            optional = inspect.Parameter.empty
            assert {key: (each.kind, each.default is optional) for key, each in mine.items()}.items() <= {
                key: (each.kind, each.default is optional) for key, each in real.items()
            }.items()
            required = {key for key, each in real.items() if each.default is optional and each.kind.name[:3] != "VAR"}
            assert required - {"self", "cls"} <= set(mine)

    def test_arguments_of_the_engine(self, stand_in):
        """Arguments of the engine are fields of vLLM's class, which is a dataclass, too."""
        known = self.fields("vllm.engine.arg_utils.EngineArgs") | self.fields("vllm.engine.arg_utils.AsyncEngineArgs")
        assert {each.name for each in dataclasses.fields(importlib.import_module("vllm").AsyncEngineArgs)} <= known

    def test_results(self, stand_in):
        """What the engine yields and records are attributes of vLLM's objects."""
        package = importlib.import_module("vllm")
        engine_class = importlib.import_module("vllm.v1.engine.async_llm").AsyncLLM
        recorded = []

        async def outputs():
            args = package.AsyncEngineArgs("m")
            logger = SimpleNamespace(record=lambda **given: recorded.append(given))
            engine = engine_class.from_engine_args(args, stat_loggers=[lambda config, index: logger])
            params = package.SamplingParams(max_tokens=1, logprobs=1)
            return [each async for each in engine.generate("a", params, "1")]

        (output,) = asyncio.run(outputs())
        (completion,), (given,) = output.outputs, recorded
        (logprob,) = completion.logprobs[0].values()
        iteration = given["iteration_stats"]
        for made, name in (
            (output, "outputs.RequestOutput"),
            (completion, "outputs.CompletionOutput"),
            (logprob, "logprobs.Logprob"),
            (given["scheduler_stats"], "v1.metrics.stats.SchedulerStats"),
            (iteration, "v1.metrics.stats.IterationStats"),
            (iteration.finished_requests[0], "v1.metrics.stats.FinishedRequestStats"),
        ):
            assert set(vars(made)) <= self.fields(f"vllm.{name}")


class TestAnswers:
    def test_whole(self, load):
        """Without `stream` there is one response, with the prompt in front unless it is excluded."""
        model = load()
        sampling = text('{"max_tokens": 3}')
        inputs = {"text_input": text("a b"), "sampling_parameters": sampling}
        assert [texts(each) for each in model.stream(inputs)] == [["a b a b a"]]
        assert [texts(each) for each in model.stream(inputs | {"exclude_input_in_output": [True]})] == [[" a b a"]]

    def test_stream(self, load):
        """Each response has the text of its tokens; the parameters of the request are those of sampling."""
        model = load()
        inputs = {"text_input": text("a b"), "stream": [True]}
        request = Request(inputs, parameters={"max_tokens": 3, "seed": "7", "x-header": "y"})
        assert [texts(each) for each in model.stream(request)] == [[" a"], [" b"], [" a"]]
        assert model.instance._engine.seen[0][1].seed == 7
        assert model.instance._engine.aborted == []

    def test_further_outputs(self, load):
        """Counts and log probabilities are those of each response."""
        model = load()
        names = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
        wanted = {f"return_{name}": [True] for name in names}
        inputs = {"text_input": text("a b c"), "stream": [True], **wanted}
        first, last = model.stream(inputs | {"sampling_parameters": text('{"max_tokens": 2, "n": 2}')})
        assert (texts(first), texts(first, "finish_reason")) == ([" a"] * 2, ["None"] * 2)
        assert (texts(last), texts(last, "finish_reason")) == ([" b"] * 2, ["length"] * 2)
        assert last["cumulative_logprob"].tolist() == [-1.0] * 2
        assert json.loads(texts(last, "logprobs")[0]) == [{"1": {"logprob": -0.5, "rank": 1, "decoded_token": " b"}}]
        assert (last["num_input_tokens"].tolist(), last["num_output_tokens"].tolist()) == ([3], [1, 1])

    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            ({"stream": [True], "exclude_input_in_output": [False]}, "When streaming, `exclude_input_in_output` ="),
            ({"sampling_parameters": text("{")}, "input 'sampling_parameters' is not valid JSON"),
            ({"sampling_parameters": text("[]")}, "'sampling_parameters' must be a JSON object, such as"),
            (
                {"sampling_parameters": text('{"temprature": 1}')},
                "unknown sampling parameter 'temprature', known are",
            ),
            ({"sampling_parameters": text('{"temperature": -1}')}, "temperature must be non-negative, got -1"),
            ({"sampling_parameters": text('{"lora_name": "x"}')}, "LoRA feature is not enabled."),
            ({"text_input": np.array([b"\xff"], object)}, "input 'text_input' is not valid UTF-8"),
        ],
    )
    def test_refused(self, load, inputs, message):
        """The message says what is wrong with the request."""
        (answer,) = load().stream({"text_input": text("a"), **inputs})
        assert message in answer.error.message
        assert answer.error.code == Code.INVALID_ARG

    def test_no_room(self, load):
        """An engine that admits no more requests is not available, which is not an internal error."""
        (answer,) = load().stream({"text_input": text("full")})
        assert answer.error.message == "The engine is currently busy and cannot accept new requests."
        assert answer.error.code == Code.UNAVAILABLE

    def test_adapters(self, load, tmp_path):
        """`lora_name` chooses an adapter of multi_lora.json; a folder of the version is one."""
        near = tmp_path / "m" / "1" / "local"
        near.mkdir(parents=True)
        model = load(model={"model": "m", "enable_lora": "true"}, multi_lora={"far": "org/far", "near": "local"})
        sampling = '{{"max_tokens": 1, "lora_name": "{}"}}'
        inputs = {"text_input": text("a"), "exclude_input_in_output": [True]}
        for name, path in (("far", "org/far"), ("near", str(near))):
            (answer,) = model.stream(inputs | {"sampling_parameters": text(sampling.format(name))})
            assert texts(answer) == [f" {path}"]
        lora = model.instance._engine.seen[1][2]
        assert (lora.lora_name, lora.lora_int_id) == ("2", 2)

    def test_cancelled(self, load):
        """A client that leaves aborts its request in the engine; others go on."""
        model = load()
        leaving = model.stream({"text_input": text("wait for me"), "stream": [True]})
        assert texts(next(leaving)) == [" wait"]
        leaving.cancel()
        assert next(leaving).error.code == Code.CANCELLED
        assert model.instance._engine.aborted == ["1"]
        (answer,) = model.stream({"text_input": text("a"), "exclude_input_in_output": [True]})
        assert texts(answer) == [" a" * 16]

    def test_a_slow_client(self, load):
        """A client that takes no responses keeps its own stream waiting, and no other request."""
        model = load()
        count = RESPONSES_AHEAD_MAX + 50
        sampling = text(json.dumps({"max_tokens": count}))
        slow = model.stream({"text_input": text("a"), "stream": [True], "sampling_parameters": sampling})
        first = next(slow)
        for _ in range(3):
            (answer,) = model.stream({"text_input": text("b"), "sampling_parameters": sampling})
            assert texts(answer) == ["b" + " b" * count]
        assert not slow.is_complete
        assert "".join(texts(each)[0] for each in [first, *slow]) == " a" * count

    def test_the_end(self, load):
        """The engine stops with its instance."""
        model = load()
        engine = model.instance._engine
        model.close()
        assert engine.is_shut_down


class TestParameters:
    KINDS = {"temperature": float, "top_k": int, "stop": str | list[str] | None, "seed": int | None, "flag": bool}

    def test_types(self):
        """Texts become numbers, booleans and lists where these are expected."""
        given = {"temperature": "0.5", "top_k": 3.0, "stop": '["a", "b"]', "seed": "7", "flag": "true"}
        assert convert_parameters(given, self.KINDS) == {
            "temperature": 0.5,
            "top_k": 3,
            "stop": ["a", "b"],
            "seed": 7,
            "flag": True,
        }
        assert convert_parameters({"stop": "["}, self.KINDS) == {"stop": "["}
        with pytest.raises(ValueError, match=r"^sampling parameter 'seed' is 'x', expected int$"):
            convert_parameters({"seed": "x"}, self.KINDS)

    def test_adapter(self):
        """A name that multi_lora.json does not have is refused in Triton's words."""
        assert choose_adapter(None, None) is None
        assert choose_adapter("a", {"a": "path"}) == "a"
        with pytest.raises(ValueError, match=r"^LoRA b is not supported, we currently support \['a'\]$"):
            choose_adapter("b", {"a": "path"})


class TestMetrics:
    def test_names(self, load):
        """The engine's statistics are on the metrics page with the names of Triton's backend."""
        model = load(parameters(REPORT_CUSTOM_METRICS="true"))
        (answer,) = model.stream({"text_input": text("a b"), "sampling_parameters": text('{"max_tokens": 3}')})
        assert answer.error is None
        labels = '{model="m",version="1"}'
        found = model.metrics()
        assert found[f"vllm:prompt_tokens_total{labels}"] == 2
        assert found[f"vllm:generation_tokens_total{labels}"] == 3
        for name in (
            "time_to_first_token_seconds",
            "e2e_request_latency_seconds",
            "request_prompt_tokens",
            "request_generation_tokens",
            "request_params_n",
        ):
            assert found[f"vllm:{name}_count{labels}"] == 1
        assert found[f"vllm:time_per_output_token_seconds_count{labels}"] == 2
        assert found[f"vllm:num_requests_running{labels}"] == 1

    def test_off(self, load):
        """Without the parameter there are none."""
        assert load().metrics() == {}

    def test_buckets(self):
        """1, 2 and 5 times each power of ten."""
        assert steps_of_1_2_5(60) == [1, 2, 5, 10, 20, 50]

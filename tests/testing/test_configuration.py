# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which configuration, which version and which code a model under test has: by the rules of the server."""

import json

import pytest

from pyruntime.testing import LoadError

ECHO = "class TritonPythonModel:\n    def execute(self, requests):\n        return [answer(N) for _ in requests]\n"
COMPLETES = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(4)
        config.add_input({"name": "IN", "data_type": "TYPE_INT64", "dims": [1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_INT64", "dims": [-1]})
        return config
    def execute(self, requests):
        return [answer(each.inputs()[0].shape()) for each in requests]
"""
IO = (
    'input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ] '
    'output [ { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] } ] '
)


@pytest.fixture
def versions(write_model):
    """The folder of a model with the versions 1, 2 and 3, each of which answers with its number."""

    def write(config=None, sources=None):
        folder = write_model((sources or {}).get(1, ECHO.replace("N", "1")), config)
        for number in (2, 3):
            (folder / str(number)).mkdir()
            source = (sources or {}).get(number, ECHO.replace("N", str(number)))
            prefix = (folder / "1/model.py").read_text().partition("class TritonPythonModel")[0]
            (folder / f"{number}/model.py").write_text(prefix + source)
        return folder

    return write


ENSEMBLE = """
platform: "ensemble"
input { name: "IN" data_type: TYPE_INT64 dims: 1 }
output { name: "OUT" data_type: TYPE_INT64 dims: 1 }
ensemble_scheduling { step {
    model_name: "n" input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } }
"""


class TestConfiguration:
    def test_of_the_model_itself(self, load):
        """Without a file it says everything."""
        model = load(COMPLETES, config=None)
        assert model.config["max_batch_size"] == 4
        assert [tensor["name"] for tensor in model.config["input"]] == ["IN"]
        assert model.infer({"IN": [[1], [2]]})["OUT"].tolist() == [2, 1]

    def test_on_gpus(self, load, machine):
        """Instances are on the GPUs of the machine, as they are in a server; here the model sees all of them."""
        model = load(
            """
            class TritonPythonModel:
                def initialize(self, args):
                    self.place = args["model_instance_kind"], args["model_instance_device_id"]
                def execute(self, requests):
                    return [answer(1) for _ in requests]
            """,
            IO + "instance_group { kind: KIND_GPU gpus: [ 1 ] }",
        )
        assert model.instance.place == ("GPU", "1")

    @pytest.mark.parametrize(
        "config",
        [
            IO + 'parameters { key: "a" value { string_value: "b" } }',
            {
                "input": [{"name": "IN", "data_type": "TYPE_INT64", "dims": [-1]}],
                "output": [{"name": "OUT", "data_type": "TYPE_INT64", "dims": [-1]}],
                "parameters": {"a": {"string_value": "b"}},
            },
        ],
        ids=["text", "dict"],
    )
    def test_instead_of_the_file(self, load_model, write_model, config):
        """A configuration takes the place of the file's, and the model gets it."""
        source = """
        class TritonPythonModel:
            def initialize(self, args):
                self.parameters = json.loads(args["model_config"])["parameters"]
            def execute(self, requests):
                return [answer(1) for _ in requests]
        """
        model = load_model(write_model(source, "nonsense"), config=config)
        assert model.instance.parameters == {"a": {"string_value": "b"}}
        assert model.infer({"IN": [5]})["OUT"].tolist() == [1]

    def test_as_the_server_shows_it(self, load, load_model, tmp_path):
        """The configuration that a model shows can be passed to load_model as its configuration."""
        config = load(ECHO.replace("N", "1"), IO).config
        assert load_model(tmp_path / "m", config=json.loads(json.dumps(config))).config == config

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ("nonsense", "config.pbtxt:1:1"),
            ('name: "other"', "unexpected directory name 'm' for model 'other', directory name must equal model name"),
            ('input [ { name: "IN" dims: [ 1 ] } ]', "model input 'IN' must specify 'data_type'"),
            ('platform: "ensemble" ensemble_scheduling {}', "must specify 'step' for ensemble 'm'"),
            (ENSEMBLE, "'m' is an ensemble, which has no code of its own: test the models of its steps"),
            ("version_policy { specific { versions: [ 7 ] } }", "at least one version must be available"),
            ('backend: "nothing_of_this_name"', "unable to find backend library for backend 'nothing_of_this_name'"),
        ],
    )
    def test_mistakes(self, load, config, message):
        """They are found as the server finds them, with its words."""
        with pytest.raises(LoadError, match=message):
            load(ECHO.replace("N", "1"), config)

    @pytest.mark.parametrize(
        ("config", "message"),
        [({"input": 5}, "Invalid config override: "), ("nonsense", "^config:1:1: ")],
    )
    def test_mistakes_in_what_takes_its_place(self, load_model, write_model, config, message):
        """They are errors of the model, too."""
        with pytest.raises(LoadError, match=message):
            load_model(write_model(ECHO), config=config)

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ("return None", "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object."),
            ("1 / 0", "^ZeroDivisionError: division by zero\n\nAt:\n  1/model.py.*: auto_complete_config\n$"),
            ("config.as_dict()['input'] = [{'name': 5}]; return config", "in auto-complete-config function for model"),
        ],
    )
    def test_mistakes_of_the_model(self, load, body, message):
        """Mistakes in the configuration that the model completes are reported, too."""
        source = COMPLETES.replace("config.set_max_batch_size(4)", body)
        with pytest.raises(LoadError, match=message):
            load(source, config=None)


class TestVersions:
    def test_the_newest(self, load_model, versions):
        """The newest version is loaded, as by a server."""
        model = load_model(versions(IO))
        assert (model.version, model.infer({"IN": [0]})["OUT"].item()) == (3, 3)

    def test_by_the_policy(self, load_model, versions):
        """Another one can be asked for, if it would be served."""
        folder = versions(IO + "version_policy { specific { versions: [ 1, 2 ] } }")
        assert load_model(folder).version == 2
        model = load_model(folder, version=1)
        assert (model.version, model.infer({"IN": [0]})["OUT"].item()) == (1, 1)
        with pytest.raises(LoadError, match="version 3 of model 'm' would not be served, only: 1, 2"):
            load_model(folder, version=3)

    def test_the_newest_completes_for_all(self, load_model, versions):
        """Even if an older one would say something else."""
        folder = versions(None, {1: COMPLETES.replace("(4)", "(1 / 0)"), 3: COMPLETES})
        with pytest.raises(LoadError, match="would not be served, only: 3"):
            load_model(folder, version=1)
        (folder / "config.pbtxt").write_text("version_policy { all {} }")
        model = load_model(folder, version=1)
        assert model.config["max_batch_size"] == 4
        assert model.infer({"IN": [[7]]})["OUT"].tolist() == [1, 1]


class TestBackends:
    MODEL = """
import json
import triton_python_backend_utils as pb_utils
import helper

class TritonPythonModel:
    def initialize(self, args):
        self.where = [args["model_repository"], pb_utils.get_model_dir()]
    def execute(self, requests):
        return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
"""

    @pytest.fixture
    def folder(self, tmp_path):
        """A model without code, and a backend for it."""
        (tmp_path / "backends/own").mkdir(parents=True)
        (tmp_path / "backends/own/model.py").write_text(self.MODEL)
        (tmp_path / "backends/own/helper.py").write_text("")
        folder = tmp_path / "m"
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text('backend: "own" ' + IO.replace('"OUT"', '"IN"'))
        return folder

    def test_backend_of_the_tests(self, load_model, folder, tmp_path):
        """A folder of backends is searched before our own."""
        model = load_model(folder, backend_directory=tmp_path / "backends")
        assert model.infer({"IN": [1, 2]})["IN"].tolist() == [1, 2]
        assert model.instance.where == [str(folder), str(folder / "1")]

    def test_callee_with_a_backend(self, load, folder, tmp_path):
        """Models that are loaded to be called have the same backends."""
        model = load(
            """
            class TritonPythonModel:
                def execute(self, requests):
                    return [pb_utils.InferenceRequest(model_name="m", inputs=requests[0].inputs()).exec()]
            """,
            IO.replace('"OUT"', '"IN"'),
            name="caller",
            callees={"m": folder},
            backend_directory=str(tmp_path / "backends"),
        )
        assert model.infer({"IN": [3]})["IN"].tolist() == [3]

    def test_none(self, load_model, folder):
        """A backend that is nowhere is said so."""
        with pytest.raises(LoadError, match="unable to find backend library for backend 'own'"):
            load_model(folder)

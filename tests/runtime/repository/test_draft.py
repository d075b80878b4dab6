# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from pyruntime.runtime.config.spec import InstanceSpec
from pyruntime.runtime.repository.draft import (
    NAMES_MAX,
    check_debug_model,
    only_process,
    only_version,
    read_config,
    read_draft,
)
from pyruntime.runtime.repository.instance_mode import InstanceProcess
from pyruntime.runtime.repository.scan import read_folder
from pyruntime.runtime.settings import ServerSettings, SettingsError
from pyruntime.utils.errors import LoadError


def instance(name, passive=False):
    return InstanceSpec(name=name, kind="CPU", device_id=0, passive=passive)


def test_model_that_there_is():
    """A model of the repositories can be debugged, and so can none at all."""
    check_debug_model("a", ["a", "b"])
    check_debug_model("", [])


@pytest.mark.parametrize(
    ("found", "listed"),
    [
        (["b", "a"], "a, b"),
        ([], "none"),
        ([f"{n:02}" for n in range(99)], ", ".join(f"{n:02}" for n in range(NAMES_MAX))),
    ],
)
def test_model_that_there_is_not(found, listed):
    """The error lists the existing models, unless there are too many."""
    with pytest.raises(SettingsError) as caught:
        check_debug_model("c", found)
    assert str(caught.value) == f"--debug: there is no model 'c' in the repositories; there are: {listed}"


def test_newest_version():
    """The newest version is debugged."""
    assert only_version((1, 2, 5)) == (5,)
    assert only_version(()) == ()


def test_first_process():
    """One process is left, which executes one batch at a time."""
    processes = (InstanceProcess(instance("a_0"), 4), InstanceProcess(instance("a_1"), 4))
    assert only_process(processes) == (InstanceProcess(instance("a_0")),)


def test_process_that_takes_requests():
    """An instance that gets no requests is debugged only if all are such."""
    passive, active = InstanceProcess(instance("a_0", True)), InstanceProcess(instance("a_1"))
    assert only_process((passive, active)) == (active,)
    assert only_process((passive, passive)) == (passive,)


class TestBackend:
    """The backend of a model that does not name it, from its folder."""

    @pytest.fixture
    def read(self, tmp_path):
        """Makes the files of a model, and reads it."""

        def read(*files, name="m", config=None):
            folder = tmp_path / name
            for file in files:
                path = folder / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.mkdir() if file.endswith("/") else path.touch()
            if config is not None:
                (folder / "config.pbtxt").write_text(config)
            found, settings = read_folder(folder, None), ServerSettings(())
            draft = read_draft(found, settings, read_config(found, settings))
            return draft.config.backend, draft.config.default_model_filename

        return read

    @pytest.mark.parametrize("config", [None, "max_batch_size: 8"])
    def test_of_a_file(self, read, config):
        """With a configuration that does not say it, and without any."""
        assert read("1/model.onnx", config=config) == ("onnxruntime", "model.onnx")
        assert read("1/model.savedmodel/", name="saved", config=config) == ("tensorflow", "model.savedmodel")
        assert read("1/model.py", name="python", config=config) == ("python", "model.py")

    def test_of_any_version(self, read):
        """The first version that has a known file says it, in the order of their names as text."""
        assert read("2/model.pt", "10/model.onnx", "3/readme") == ("onnxruntime", "model.onnx")
        assert read("1/readme", "2/model.pt", name="other") == ("pytorch", "model.pt")

    def test_warm_up_that_is_not_valid(self, read):
        """The samples are looked at with the versions, once the model has completed its configuration."""
        sample = "model_warmup { batch_size: 1 inputs { key: 'IN' value { data_type: 99 dims: 1 zero_data: true } } }"
        assert read("1/model.py", config=sample) == ("python", "model.py")

    def test_of_no_file(self, read):
        """The message has the files of the first version."""
        with pytest.raises(LoadError, match=r"^Invalid model name: .* has model.bin, weights/, and none of "):
            read("1/model.bin", "1/weights/", "2/readme")
        with pytest.raises(LoadError, match=r"Its version has no files, and none of "):
            read("1/", name="empty")
        with pytest.raises(LoadError, match=r"^at least one version must be available under the version policy of "):
            read("readme", name="no_version")

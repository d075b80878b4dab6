# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Repositories that are polled, and loads that are tried again, with real servers."""

import json
import shutil

import numpy as np
import pytest

ADD = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy() + AMOUNT)])
            for request in requests
        ]
"""
# Fails as often as COUNT says; the file beside it remembers how often it did.
FLAKY = """
path = os.path.join(os.path.dirname(__file__), ".tries")

class TritonPythonModel:
    def initialize(self, args):
        tries = len(open(path).read()) if os.path.exists(path) else 0
        with open(path, "a") as file:
            file.write("x")
        if tries < COUNT:
            raise ValueError(f"try {tries}")
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.inputs()[0].as_numpy())]) for each in requests]
"""
POLL = ("--model-control-mode=poll", "--repository-poll-secs=1")


def add(amount):
    return ADD.replace("AMOUNT", str(amount))


def answer(server, model="m"):
    return server.infer(model, {"IN": np.array([1])}).as_numpy("OUT").tolist()


def index(server):
    rows = json.loads(server.request("POST", "/v2/repository/index", b"{}").body)
    return {(row["name"], row.get("version")): row.get("state") for row in rows}


def test_polling(serve, model, write_model, tmp_path, wait_until):
    """Models are loaded, loaded anew and unloaded as their folders come, change and go; requests never fail for it."""
    folder = model("m", add(1))
    server = serve(*POLL)
    assert answer(server) == [2]
    # All at once: half a folder may be a model, too.
    write_model(tmp_path / ".new", "n", add(10)).rename(tmp_path / "n")
    wait_until(lambda: index(server).get(("n", "1")) == "READY")
    assert answer(server, "n") == [11]
    text = (folder / "1" / "model.py").read_text().replace("+ 1)", "+ 2)")
    (folder / "1" / "model.py").write_text(text)
    # Until the new version serves the old one does, and there is nothing between them.
    wait_until(lambda: answer(server) == [3])
    shutil.rmtree(tmp_path / "n")
    wait_until(lambda: index(server).get(("n", "1")) != "READY")
    wait_until(server.is_ready)
    assert answer(server) == [3]
    for action in ("load", "unload"):
        refused = server.request("POST", f"/v2/repository/models/m/{action}", b"{}")
        assert refused.status == 503
        assert json.loads(refused.body) == {
            "error": "explicit model load / unload is not allowed if polling is enabled"
        }


def test_a_file(serving, tmp_path, wait_until):
    """`pyruntime serve m.py --reload` serves a file, and what its user makes of it."""
    file = tmp_path / "m.py"
    imports = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n"
    completes = """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_INT64", "dims": [1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_INT64", "dims": [1]})
        return config
"""
    file.write_text("raise ValueError('not yet')")
    (tmp_path / "empty").mkdir()
    with serving(tmp_path / "empty", str(file), "--reload", ready=False) as server:
        wait_until(lambda: "not yet" in server.log)
        file.write_text(imports + add(1) + completes)
        wait_until(lambda: index(server).get(("m", "1")) == "READY")
        assert answer(server) == [2]
        file.write_text(imports + add(2) + completes)
        wait_until(lambda: answer(server) == [3])
        server.wait_ready()


def test_a_model_that_is_mended(serve, model, wait_until):
    """A model that failed at the start is served once its folder is right."""
    folder = model("m", "raise ValueError('no')")
    server = serve(*POLL, "--exit-on-error=false", ready=False)
    wait_until(lambda: "failed to load 'm' version 1: Internal: ValueError: no" in server.log)
    (folder / "1" / "model.py").write_text("import triton_python_backend_utils as pb_utils\n" + add(1))
    wait_until(server.is_ready)
    assert answer(server) == [2]


def test_a_broken_edit(serve, model, wait_until):
    """An edit that fails is tried once, with one traceback; the index says what serves, and why."""
    folder = model("m", add(1))
    other = model("n", add(1))
    server = serve(*POLL)
    whole = (folder / "1" / "model.py").read_text()

    def reason():
        rows = json.loads(server.request("POST", "/v2/repository/index", b"{}").body)
        (row,) = (row for row in rows if row["name"] == "m")
        assert row["state"] == "READY"
        return row.get("reason", "")

    (folder / "1" / "model.py").write_text(whole + "\nraise ValueError('half an edit')\n")
    older = "an older configuration serves, because the latest failed to load: "
    wait_until(lambda: reason().startswith(f"{older}version 1: Internal: ValueError: half an edit"))
    # Three further polls, which are seen by what they find.
    for amount in (2, 3, 4):
        (other / "1" / "model.py").write_text(
            (other / "1" / "model.py").read_text().replace(f"+ {amount - 1})", f"+ {amount})")
        )
        wait_until(lambda amount=amount: answer(server, "n") == [1 + amount])
    assert server.log.count("raise ValueError('half an edit')") == 1
    assert answer(server) == [2]
    assert server.is_ready()
    (folder / "1" / "model.py").write_text(whole)
    wait_until(lambda: not reason())


def test_zero_is_never(serve, model):
    """The repositories are read once, at the start."""
    model("m", add(1))
    server = serve("--model-control-mode=poll", "--repository-poll-secs=0")
    assert answer(server) == [2]


class TestRetries:
    @pytest.mark.parametrize("options", [[], ["--disable-auto-complete-config"]])
    def test_enough(self, serve, model, options):
        """A version that fails is loaded again, as often as the operator has it, and each time is said."""
        folder = model("m", FLAKY.replace("COUNT", "2"))
        server = serve("--model-load-retry-count=2", *options)
        assert answer(server) == [1]
        assert (folder / "1" / ".tries").read_text() == "xxx"
        for tries in range(2):
            assert f"failed to load 'm' version 1, which is tried again: ValueError: try {tries}" in server.log
        assert "failed to load 'm' version 1:" not in server.log

    def test_too_few(self, serve, model):
        """The last failure is the one that counts."""
        folder = model("m", FLAKY.replace("COUNT", "2"))
        server = serve("--model-load-retry-count=1", ready=False)
        assert server.wait_exit() == 1
        assert (folder / "1" / ".tries").read_text() == "xx"
        assert "failed to load 'm' version 1: Internal: ValueError: try 1" in server.log

    def test_none(self, serve, model):
        """A failed load is final by default."""
        folder = model("m", FLAKY.replace("COUNT", "1"))
        server = serve(ready=False)
        assert server.wait_exit() == 1
        assert (folder / "1" / ".tries").read_text() == "x"

    def test_several_versions(self, serve, model):
        """Each version is tried separately, and waits for the configuration that the newest one completes."""
        folder = model("m", add(1), more="version_policy { all {} }")
        (folder / "2").mkdir()
        source = (folder / "1" / "model.py").read_text().replace(add(1), "") + FLAKY.replace("COUNT", "1")
        (folder / "2" / "model.py").write_text(source)
        server = serve("--model-load-retry-count=1")
        assert index(server) == {("m", "1"): "READY", ("m", "2"): "READY"}

    def test_versions_that_wait_in_vain(self, serve, model):
        """Without the newest version's configuration no other version is loaded or tried."""
        folder = model("m", add(1), more="version_policy { all {} }")
        (folder / "2").mkdir()
        (folder / "2" / "model.py").write_text("raise ValueError('no')\n")
        server = serve("--model-load-retry-count=1", ready=False)
        assert server.wait_exit() == 1
        assert server.log.count("failed to load 'm' version 2, which is tried again") == 1
        assert "failed to load 'm' version 1, which is tried again" not in server.log

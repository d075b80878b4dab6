# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from pyruntime.runtime.cli.parse import parse_arguments
from pyruntime.runtime.cli.resolve import resolve
from pyruntime.runtime.settings import PythonBackendSettings, ServerSettings, SettingsError, TlsSettings


def settings(*words):
    """The settings for a command line with these words and a repository, which must not cause warnings."""
    resolved, warnings = resolve(parse_arguments(["--model-repository=models", *words])[0])
    assert warnings == []
    return resolved


def warnings(*words):
    return resolve(parse_arguments(["--model-repository=models", *words])[0])[1]


def test_a_repository_is_needed():
    """Without a repository there is nothing to serve."""
    with pytest.raises(SettingsError, match=r"^--model-repository must be specified$"):
        resolve({})


def test_an_empty_repository():
    """An empty text, such as that of an unset variable, does not serve the current folder."""
    with pytest.raises(SettingsError, match=r"^--model-repository needs a folder, and was given an empty text$"):
        resolve(parse_arguments(["--model-repository=a", "--model-repository="])[0])


def test_reload():
    """--reload polls every second, also with models that failed to load; no other control of models goes with it."""
    resolved = settings("--reload")
    assert (resolved.model_control_mode, resolved.repository_poll_s, resolved.exit_on_error) == ("poll", 1, False)
    assert settings("--reload", "--exit-on-error=true").exit_on_error
    with pytest.raises(SettingsError, match=r"^--reload polls the repositories, so --model-control-mode cannot"):
        settings("--reload", "--model-control-mode=explicit")


def test_no_fast_path():
    """The fast path is on unless it is switched off."""
    assert settings().fast_path
    assert not settings("--no-fast-path").fast_path


def test_options_reach_their_fields():
    """Each option sets the field of its name."""
    resolved = settings("--id=a", "--exit-timeout-secs=5", "--http-port=80", "--log-verbose=1", "--model-store=more")
    assert resolved == ServerSettings(("models", "more"), server_id="a", exit_timeout_s=5, http_port=80, log_verbose=1)


def test_empty_text_is_as_if_not_given():
    """--backend-directory= and --id= leave the default."""
    assert settings("--backend-directory=", "--id=", "--metrics-address=") == ServerSettings(("models",))


@pytest.mark.parametrize(
    ("words", "auto_complete"),
    [
        ([], True),
        (["--disable-auto-complete-config"], False),
        (["--strict-model-config=true"], False),
        (["--strict-model-config=false"], True),
        (["--disable-auto-complete-config", "--strict-model-config=false"], False),
    ],
)
def test_auto_completion(words, auto_complete):
    """Either option switches it off, and neither switches it on again."""
    assert settings(*words).auto_complete_config is auto_complete


def test_models_to_load():
    """In explicit mode the operator says what to load at the start."""
    resolved = settings("--model-control-mode=EXPLICIT", "--load-model=a", "--load-model=b")
    assert (resolved.model_control_mode, resolved.load_models) == ("explicit", ("a", "b"))
    assert settings("--model-control-mode=explicit").load_models == ()


def test_control_mode_in_any_case():
    """The mode that there is warns of nothing, and any other word is refused."""
    assert settings("--model-control-mode=NONE").model_control_mode == "none"
    assert settings("--model-control-mode=Poll").model_control_mode == "poll"
    with pytest.raises(SettingsError, match="must be one of none, poll, explicit, not 'sometimes'"):
        settings("--model-control-mode=sometimes")


class TestTls:
    """The options of both protocols, which differ in nothing but their names."""

    @pytest.fixture(params=["http", "grpc"])
    def tls(self, request):
        """The TLS settings of one protocol for options without the protocol's name, and those of the other protocol."""

        def resolved(*words):
            both = settings(*(f"--{request.param}-{word}" for word in words))
            found = {"http": both.http_tls, "grpc": both.grpc_tls}
            return found.pop(request.param), *found.values()

        return resolved

    def test_off(self, tls):
        """Files alone switch nothing on."""
        assert tls("server-cert=c", "server-key=k", "root-cert=r") == (None, None)
        assert tls("use-ssl=false", "use-ssl-mutual=0", "server-cert=c", "server-key=k") == (None, None)

    def test_on(self, tls):
        """TLS is on for one protocol alone; clients need no certificate, even if there is a root certificate."""
        assert tls("use-ssl=true", "server-cert=c", "server-key=k") == (TlsSettings("c", "k"), None)
        assert tls("use-ssl=true", "server-cert=c", "server-key=k", "root-cert=r") == (TlsSettings("c", "k"), None)

    @pytest.mark.parametrize("also", [[], ["use-ssl=true"], ["use-ssl=false"]])
    def test_mutual(self, tls, also):
        """It is TLS in any case."""
        words = ["use-ssl-mutual=true", "server-cert=c", "server-key=k", "root-cert=r"]
        assert tls(*also, *words) == (TlsSettings("c", "k", "r"), None)

    @pytest.mark.parametrize("words", [[], ["server-cert=c"], ["server-key=k"], ["server-cert=", "server-key=k"]])
    def test_missing_files(self, tls, words):
        """A certificate and its key are needed."""
        with pytest.raises(SettingsError, match="TLS needs a certificate and its key"):
            tls("use-ssl=true", *words)

    def test_missing_root(self, tls):
        """Whose clients' certificates are good must be said."""
        with pytest.raises(SettingsError, match=r"-use-ssl-mutual needs --.*-root-cert"):
            tls("use-ssl-mutual=true", "server-cert=c", "server-key=k")


def test_backend_config_by_backend():
    """Keys stand under their backend, global ones under "", the last one of a key counts, a late comma is a value's."""
    resolved = settings("--backend-config=vllm,a=1", "--backend-config=b=1,2", "--backend-config=vllm,a=3")
    assert resolved.backend_config == {"vllm": {"a": "3"}, "": {"b": "1,2"}}


@pytest.mark.parametrize("text", ["=1", "python,=1", ",a=1"])
def test_backend_config_needs_names(text):
    """A backend and a key have a name."""
    with pytest.raises(SettingsError, match="--backend-config needs <backend>,<key>=<value> or <key>=<value>"):
        settings(f"--backend-config={text}")


def test_every_key_of_the_python_backend():
    """Triton's seven keys for the Python backend are read, and kept as text too."""
    texts = {
        "shm-default-byte-size": "4194304",
        "shm-growth-byte-size": "2097152",
        "stub-timeout-seconds": "60",
        "shm-region-prefix-name": "mine_",
        "thread-pool-size": "8",
        "shm_message_queue_size": "10",
        "default-max-batch-size": "16",
    }
    resolved = settings(*(f"--backend-config=python,{key}={text}" for key, text in texts.items()))
    assert resolved.python_backend == PythonBackendSettings(4194304, 2097152, 60, "mine_", 8, 10, 16)
    assert resolved.backend_config == {"python": texts}


def test_global_default_batch_size_yields_to_the_backends_own():
    """--backend-config=default-max-batch-size=N is for every backend that has none of its own."""
    both = ("--backend-config=python,default-max-batch-size=2", "--backend-config=default-max-batch-size=8")
    assert settings(both[1]).python_backend.default_max_batch_size == 8
    assert settings(*both).python_backend.default_max_batch_size == 2


def test_python_key_that_is_no_integer():
    """A size that is no integer names the key."""
    with pytest.raises(SettingsError, match="--backend-config=python,thread-pool-size needs an integer, not 'many'"):
        settings("--backend-config=python,thread-pool-size=many")


def test_unknown_python_key_is_a_warning():
    """A mistyped key is a warning with the likely one; a command line for an older Triton still starts."""
    assert warnings("--backend-config=python,shm-defualt-byte-size=1") == [
        "--backend-config=python,shm-defualt-byte-size is not known and has no effect; "
        "did you mean shm-default-byte-size?"
    ]


def test_the_response_cache():
    """The cache's settings, of which the last one counts. The older option is for the cache `local`."""
    resolved = settings("--cache-config=c,a=1", "--cache-config=c,b=2,3=4", "--cache-config=c,a=5")
    assert resolved.cache_config == {"c": {"a": "5", "b": "2,3=4"}}
    assert settings("--response-cache-byte-size=7").cache_config == {"local": {"size": "7"}}
    assert settings("--response-cache-byte-size=0").cache_config == settings().cache_config == {}


@pytest.mark.parametrize("text", ["c=1", "c,=1", ",a=1"])
def test_a_response_cache_without_its_name_or_key(text):
    """Triton's message."""
    expected = "--cache-config option format is <cache name>,<setting>=<value>. Got " + text
    with pytest.raises(SettingsError, match=expected):
        settings(f"--cache-config={text}")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_cache_and_forwarded_headers(protocol):
    """Models act on headers, which the cache does not see: whoever has both is warned."""
    cache, pattern = "--cache-config=local,size=1048576", f"--{protocol}-header-forward-pattern=x-user"
    (warning,) = warnings(cache, pattern)
    assert "one client's headers" in warning
    assert warnings(cache) == warnings(pattern) == []


def test_host_policies():
    """By their names, with all that is set for each."""
    resolved = settings(
        "--host-policy=a,numa-node=0", "--host-policy=a,cpu-cores=0-3,8", "--host-policy=cpu,numa-node=1"
    )
    assert resolved.host_policies == {"a": {"numa-node": "0", "cpu-cores": "0-3,8"}, "cpu": {"numa-node": "1"}}


@pytest.mark.parametrize("text", ["a=1", ",numa-node=1", "a,=1", "a,numa-node="])
def test_a_host_policy_that_lacks_something(text):
    """Triton's message."""
    expected = f"^--host-policy option format is '<policy name>,<setting>=<value>'. Got {text}$"
    with pytest.raises(SettingsError, match=expected):
        settings(f"--host-policy={text}")


def test_a_setting_that_host_policies_have_not():
    """Triton's message."""
    expected = "Unsupported host policy setting 'b' is specified, supported settings are 'numa-node', 'cpu-cores'"
    with pytest.raises(SettingsError, match=expected):
        settings("--host-policy=a,b=1")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--cache-config=a,b=1", "--cache-config=b,b=1"], "found multiple cache configurations"),
        (["--cache-config=a,b=1", "--response-cache-byte-size=5"], "Incompatible flags --response-cache-byte-size"),
    ],
)
def test_there_is_one_response_cache(words, expected):
    """Triton's message."""
    with pytest.raises(SettingsError, match=expected):
        settings(*words)

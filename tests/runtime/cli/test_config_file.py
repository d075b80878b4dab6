# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.cli.config_file import CONFIG_BYTES_MAX, parse_config, read_config_file
from pyruntime.runtime.cli.parse import parse_arguments
from pyruntime.runtime.settings import SettingsError


def refusal(text):
    with pytest.raises(SettingsError) as caught:
        parse_config(text.encode(), "server.yaml")
    return str(caught.value)


def test_file_says_the_same_as_a_command_line():
    """Names with "-" or "_", lists and mappings give the values of the command line that says the same."""
    text = b"""
http-port: 8001
allow_grpc: false
model-store: [a, b]
backend-config:
  python: {shm-default-byte-size: 4194304}
  default-max-batch-size: 8
rate-limit: off
log-file:
disable-auto-complete-config: true
"""
    words = ["--http-port=8001", "--allow-grpc=false", "--model-store=a", "--model-store=b"]
    words += ["--backend-config=python,shm-default-byte-size=4194304", "--backend-config=default-max-batch-size=8"]
    words += ["--rate-limit=off", "--log-file=", "--disable-auto-complete-config"]
    assert parse_config(text, "server.yaml") == parse_arguments(words)


def test_one_text_for_a_list():
    """A single repository needs no brackets."""
    assert parse_config(b"model-repository: models", "f")[0] == {"model-repository": ["models"]}


def test_settings_as_a_list():
    """The form of the command line is accepted too."""
    assert parse_config(b"backend-config: ['python,a=1']", "f")[0] == {"backend-config": ["python,a=1"]}


def test_flag_that_is_false_is_not_there():
    """disable-auto-complete-config: false disables nothing."""
    assert parse_config(b"disable-auto-complete-config: false", "f") == ({}, [])


@pytest.mark.parametrize("text", [b"", b"# nothing\n", b"---\n"])
def test_empty_file(text):
    """A file without options sets none."""
    assert parse_config(text, "f") == ({}, [])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("http-prot: 1", "server.yaml: unknown key 'http-prot'; did you mean http-port?"),
        ("http: 1", "server.yaml: unknown key 'http'"),
        ("help: true", "server.yaml: unknown key 'help'"),
        ("config: other.yaml", "server.yaml: unknown key 'config'"),
        ("http-port: many", "server.yaml: http-port needs an integer, not 'many'"),
        ("allow_http: yes", "server.yaml: allow_http needs true, false, 1 or 0, not 'yes'"),
        ("http-port: [1]", "server.yaml: http-port needs a single value"),
        ("model-repository: {a: b}", "server.yaml: model-repository needs one text or a list of texts"),
        ("model-repository: [[a]]", "server.yaml: model-repository needs one text or a list of texts"),
        ("backend-config: [[a]]", "server.yaml: backend-config needs a mapping, or a list of <key>=<value>"),
        ("backend-config: {python: {a: {b: c}}}", "server.yaml: backend-config: python needs a text or <key>: <text>"),
        ("http-port: 1\nhttp_port: 2", "server.yaml: http-port is there twice"),
        ("a\nb: c: d", "server.yaml, line 2: not valid YAML: "),
        ("id: [a", "server.yaml, line 1: not valid YAML: "),
        ("id: *nobody", "server.yaml, line 1: not valid YAML: "),
        ("id: \x00", "server.yaml: not valid YAML: "),
        ("- http-port", "server.yaml: needs options as a mapping, such as `http-port: 8000`"),
        ("http-port", "server.yaml: needs options as a mapping"),
    ],
)
def test_refusals_name_file_and_key(text, sentence):
    """A mistake in a file is one sentence with the file, the key or line, and the expected form."""
    assert refusal(text).startswith(sentence)


def test_tags_run_nothing():
    """A tag that asks for a Python object is text like any other."""
    assert parse_config(b"id: !!python/name:os.getcwd x", "f")[0] == {"id": "x"}
    assert "id needs a single value" in refusal("id: !!python/object/apply:os.getcwd []")


def test_missing_and_overlong_files(tmp_path):
    """A file that cannot be read, or is far too long for options, is refused before it is parsed."""
    with pytest.raises(SettingsError, match="cannot be read: No such file or directory"):
        read_config_file(str(tmp_path / "none.yaml"))
    long = tmp_path / "long.yaml"
    long.write_bytes(b"#" * (CONFIG_BYTES_MAX + 1))
    with pytest.raises(SettingsError, match=f"is longer than {CONFIG_BYTES_MAX} bytes"):
        read_config_file(str(long))


def test_file_is_read(tmp_path):
    """A file on disk yields its values, and a warning for an option without effect."""
    path = tmp_path / "server.yaml"
    path.write_text("http-thread-count: 8\n")
    values, warnings = read_config_file(str(path))
    assert values == {"http-thread-count": 8}
    assert warnings == ["--http-thread-count is accepted and has no effect: one event loop serves every connection"]


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_parse_or_are_refused(text):
    """No file ends in anything but values or a SettingsError."""
    with contextlib.suppress(SettingsError):
        parse_config(text, "f")

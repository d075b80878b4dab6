# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.cli.parse import INT_MAX, merge, parse_arguments
from pyruntime.runtime.settings import SettingsError


def values(*words):
    return parse_arguments(words)[0]


@pytest.mark.parametrize("words", [["--http-port=80"], ["--http-port", "80"], ["--http-po", "80"], ["--http-po=80"]])
def test_argument_after_equals_or_in_the_next_word(words):
    """An argument follows "=" or is the next word, and a prefix that fits one option will do."""
    assert values(*words) == {"http-port": 80}


def test_value_keeps_later_equals_signs():
    """Only the first "=" separates."""
    assert values("--backend-config=python,a=b=c") == {"backend-config": ["python,a=b=c"]}


def test_argument_may_begin_with_a_dash():
    """As with getopt_long, the word after an option is its argument, even if it begins with a dash."""
    assert values("--id", "--name") == {"id": "--name"}


def test_exact_name_wins_over_longer_ones():
    """--grpc-use-ssl is itself, though --grpc-use-ssl-mutual begins so too."""
    assert values("--grpc-use-ssl=1") == {"grpc-use-ssl": True}


def test_prefix_of_several_is_refused():
    """A prefix that fits several options names them."""
    with pytest.raises(SettingsError) as caught:
        values("--log-f=x")
    assert str(caught.value) == "--log-f is short for several: --log-format, --log-file"


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("1", True), ("False", False), ("0", False)]
)
def test_booleans(text, value):
    """Booleans are true, 1, false and 0, in any case."""
    assert values(f"--exit-on-error={text}") == {"exit-on-error": value}


@pytest.mark.parametrize("text", ["yes", "", "2", "on"])
def test_not_a_boolean(text):
    """Other words are no booleans."""
    with pytest.raises(SettingsError) as caught:
        values(f"--exit-on-error={text}")
    assert str(caught.value) == f"--exit-on-error needs true, false, 1 or 0, not {text!r}"


def test_boolean_needs_its_argument():
    """A boolean is no flag: at the end of the line its argument is missing."""
    with pytest.raises(SettingsError, match="--allow-http needs an argument: true, false, 1 or 0"):
        values("--allow-http")


def test_flag_takes_no_argument():
    """--disable-auto-complete-config stands alone, and swallows no word."""
    assert values("--disable-auto-complete-config", "--id=a") == {"disable-auto-complete-config": True, "id": "a"}
    with pytest.raises(SettingsError, match="takes no argument, and was given 'true'"):
        values("--disable-auto-complete-config=true")


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("-1", -1), ("+7", 7), ("007", 7), (str(INT_MAX), INT_MAX)])
def test_integers(text, value):
    """Integers are decimal, with a sign if need be."""
    assert values("--trace-count", text) == {"trace-count": value}


@pytest.mark.parametrize("text", ["", "1.5", "1_000", " 1", "0x10", "٣", str(INT_MAX + 1), "9" * 5000])
def test_not_an_integer(text):
    """A text that only Python reads as an integer, and a number that exceeds int64, are refused."""
    with pytest.raises(SettingsError, match="needs an integer"):
        values("--trace-count", text)


def test_not_a_number():
    """A fraction is a number and nothing else."""
    with pytest.raises(SettingsError, match="--metrics-interval-ms needs a number, not 'soon'"):
        values("--metrics-interval-ms=soon")


def test_setting_without_equals_is_refused():
    """<key>=<value> needs its "="."""
    with pytest.raises(SettingsError, match=r"--backend-config needs <key>=<value>, .* not 'python'"):
        values("--backend-config=python")


def test_repeatable_options_keep_their_order_and_the_alias_joins_in():
    """--model-store is --model-repository; each occurrence adds one."""
    words = ["--model-repository=a", "--model-store", "b", "--model-repository", "c"]
    assert values(*words) == {"model-repository": ["a", "b", "c"]}


def test_last_one_counts():
    """An option that holds one value holds the last."""
    assert values("--http-port=1", "--http-port=2") == {"http-port": 2}


@pytest.mark.parametrize("words", [["a"], ["-m", "a"], ["-ma"], ["-m=a"], ["--model-repository", "a"]], ids=" ".join)
def test_repositories(words):
    """A word without a name is a model repository, and -m is short for the option; there may be several."""
    assert values(*words, "--http-port=1", "b=c") == {"model-repository": ["a", "b=c"], "http-port": 1}


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("--http-prot=1", "unknown option '--http-prot'; did you mean --http-port?"),
        ("--http_port=1", "unknown option '--http_port'; did you mean --http-port?"),
        ("--zzz", "unknown option '--zzz'"),
        ("--=1", "unknown option '--'"),
        ("http-port=1", "unexpected argument 'http-port=1'; options are written like --http-port=8000"),
        ("--", "unexpected argument '--'; options are written like --http-port=8000"),
        ("-v", "unexpected argument '-v'; options are written like --http-port=8000"),
    ],
)
def test_unknown_words_are_refused(word, sentence):
    """An unknown option is refused, with similar names; underscores are not dashes."""
    with pytest.raises(SettingsError) as caught:
        values(word)
    assert str(caught.value) == sentence


def test_control_characters_of_an_unknown_option_are_not_repeated():
    """An error message cannot drive the terminal that it is read on."""
    with pytest.raises(SettingsError) as caught:
        values("--\x1b[2J")
    assert str(caught.value).isprintable()


def test_one_warning_for_an_option_given_twice():
    """An option without effect causes one warning, however often it is given, also by prefixes."""
    _, warnings = parse_arguments(["--http-thread-count=1", "--http-thread=2", "--model-namespacing=true"])
    assert warnings == [
        "--http-thread-count is accepted and has no effect: one event loop serves every connection",
        "--model-namespacing is accepted but has no effect yet: model names must be unique",
    ]


def test_merge_lets_the_second_win():
    """A value replaces a value, a list a list; <key>=<value> lists are joined, and there the last counts."""
    base = {"id": "a", "http-port": 1, "model-repository": ["a"], "backend-config": ["python,a=1"]}
    over = {"id": "b", "model-repository": ["b"], "backend-config": ["python,a=2"]}
    assert merge(base, over) == {
        "id": "b",
        "http-port": 1,
        "model-repository": ["b"],
        "backend-config": ["python,a=1", "python,a=2"],
    }


@given(st.lists(st.text() | st.text().map(lambda text: f"--{text}")))
def test_any_words_parse_or_are_refused(words):
    """No command line ends in anything but values or a SettingsError."""
    with contextlib.suppress(SettingsError):
        parse_arguments(words)

"""Texts as values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpage.cli.settings import settings_of
from asyncpage.cli.value import Setting, size_text, value_from_text, value_from_toml
from asyncpage.errors import UsageError

SETTINGS = {setting.name: setting for room in ("engine", "server") for setting in settings_of(room)}


def read(name: str, text: str) -> object:
    return value_from_text(SETTINGS[name], text, "--it")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1000", 1000),
        ("512M", 512 * 2**20),
        ("512MiB", 512 * 2**20),
        ("512mib", 512 * 2**20),
        ("512MB", 512_000_000),
        ("2GiB", 2 * 2**30),
        ("1.5K", 1536),
        ("3 T", 3 * 2**40),
        ("7B", 7),
    ],
)
def test_sizes_are_read_in_powers_of_1024_unless_written_as_decimal(text: str, size: int) -> None:
    assert read("kv_cache_bytes", text) == size


@given(st.integers(min_value=0, max_value=2**50))
def test_a_size_is_shown_in_a_form_that_reads_back(size: int) -> None:
    assert read("kv_cache_bytes", size_text(size)) == size


@pytest.mark.parametrize("text", ["", "x", "-1G", "2Q", "1e9", "GiB", "0x10", "2 GiB more"])
def test_what_is_no_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match=r"--it takes a size.*512M, 2GiB or 10GB would do"):
        read("kv_cache_bytes", text)


@pytest.mark.parametrize("text", ["many", "1.5", "", "0x10", "1e3"])
def test_what_is_no_whole_number_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"--it takes a whole number of requests.*--max-num-seqs 128 would do"):
        read("max_num_seqs", text)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "soon"])
def test_seconds_are_finite_numbers(text: str) -> None:
    with pytest.raises(UsageError, match=r"--it takes a number of seconds.*--drain-timeout 30.0 would do"):
        read("drain_timeout_s", text)
    assert read("drain_timeout_s", "2.5") == 2.5


@pytest.mark.parametrize(("text", "value"), [("true", True), ("No", False), ("1", True), ("off", False)])
def test_switches_take_the_usual_words(text: str, value: bool) -> None:
    assert read("enable_prefix_caching", text) is value
    with pytest.raises(UsageError, match="takes true or false, got 'perhaps'"):
        read("enable_prefix_caching", "perhaps")


def test_a_choice_is_one_of_the_words_it_knows() -> None:
    assert read("log_format", "json") == "json"
    with pytest.raises(UsageError, match="must be one of console, json; got 'xml'"):
        read("log_format", "xml")


@pytest.mark.parametrize(
    ("name", "value", "result"),
    [
        ("max_num_seqs", 7, 7),
        ("kv_cache_bytes", "2GiB", 2 * 2**30),
        ("kv_cache_bytes", 4096, 4096),
        ("watermark", 0, 0.0),
        ("enable_prefix_caching", False, False),
        ("api_key", ["a", "b"], ("a", "b")),
        ("api_key", "a", ("a",)),
        ("dtype", "bfloat16", "bfloat16"),
    ],
)
def test_toml_values_are_taken_as_they_are_written(name: str, value: object, result: object) -> None:
    found = value_from_toml(SETTINGS[name], value, "file")
    assert found == result
    assert type(found) is type(result)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_seqs", "7"),
        ("max_num_seqs", 7.0),
        ("max_num_seqs", True),
        ("enable_prefix_caching", 1),
        ("enable_prefix_caching", "true"),
        ("watermark", float("nan")),
        ("api_key", [1]),
        ("api_key", 1),
        ("dtype", 16),
        ("dtype", "int8"),
        ("kv_cache_bytes", [1]),
    ],
)
def test_toml_values_of_another_type_are_refused(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=r"^file "):
        value_from_toml(SETTINGS[name], value, "file")


def test_seconds_may_be_named_without_their_unit() -> None:
    setting: Setting = SETTINGS["request_timeout_s"]
    assert setting.flags == ("--request-timeout", "--request-timeout-s")
    assert setting.variables == ("ASYNCPAGE_REQUEST_TIMEOUT", "ASYNCPAGE_REQUEST_TIMEOUT_S")


def test_numbers_beyond_all_measure_are_read_or_refused_but_never_crash() -> None:
    huge = "9" * 400
    assert read("max_num_seqs", huge) == int(huge)
    assert read("kv_cache_bytes", huge) == int(huge)
    with pytest.raises(UsageError, match="takes a number of seconds"):
        value_from_toml(SETTINGS["drain_timeout_s"], int(huge), "file")


def test_a_key_is_not_repeated_in_an_error() -> None:
    with pytest.raises(UsageError) as refused:
        value_from_toml(SETTINGS["api_key"], 123456, "file")
    assert "123456" not in str(refused.value)

"""Flag over variable over file over default, and what is said when one of them cannot be read."""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import pytest

from asyncpage.cli.settings import ROOMS, Settings, declare, declare_model, resolve, settings_of, show
from asyncpage.config import EngineConfig
from asyncpage.errors import UsageError
from asyncpage.server.config import ServerConfig


def settle(argv: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> Settings:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    declare_model(parser)
    declare(parser, "server", "engine")
    return resolve(parser.parse_args(argv), environment or {})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "asyncpage.toml"
    path.write_text('[engine]\nmax_num_seqs = 3\nmodel = "file.gguf"\n[server]\nport = 3\nrequest_timeout = 9\n')
    return path


def test_the_nearest_source_wins(file: Path) -> None:
    variables = {"ASYNCPAGE_MAX_NUM_SEQS": "2"}
    config = ["--config", str(file)]
    assert settle().engine.max_num_seqs == EngineConfig().max_num_seqs
    assert settle(config).engine.max_num_seqs == 3
    assert settle(config, variables).engine.max_num_seqs == 2
    assert settle([*config, "--max-num-seqs", "1"], variables).engine.max_num_seqs == 1


def test_each_value_is_known_with_its_source(file: Path) -> None:
    settings = settle(["x.gguf", "--config", str(file), "--no-enable-prefix-caching"], {"ASYNCPAGE_PORT": "5"})
    assert settings.origins["model"] == "MODEL"
    assert settings.origins["enable_prefix_caching"] == "--no-enable-prefix-caching"
    assert settings.origins["port"] == "ASYNCPAGE_PORT"
    assert settings.origins["request_timeout_s"] == f"{file} [server] request_timeout"
    assert settings.origins["host"] == "default"


def test_nothing_given_is_the_default_configuration() -> None:
    settings = settle()
    assert settings.engine == EngineConfig()
    assert settings.server == ServerConfig()


def test_every_field_has_a_flag_a_variable_and_a_key() -> None:
    for room, config in ROOMS.items():
        assert [setting.name for setting in settings_of(room)] == [field.name for field in fields(config)]


@pytest.mark.parametrize("flag", ["--request-timeout", "--request-timeout-s"])
def test_a_time_limit_goes_by_both_of_its_names(flag: str) -> None:
    assert settle([flag, "2"]).server.request_timeout_s == 2.0
    variable = "ASYNCPAGE_" + flag[2:].replace("-", "_").upper()
    assert settle([], {variable: "3"}).server.request_timeout_s == 3.0


def test_one_setting_under_two_names_is_refused() -> None:
    twice = {"ASYNCPAGE_REQUEST_TIMEOUT": "1", "ASYNCPAGE_REQUEST_TIMEOUT_S": "1"}
    with pytest.raises(UsageError, match="are the same setting"):
        settle([], twice)
    with pytest.raises(UsageError, match="MODEL and --model are the same setting"):
        settle(["a.gguf", "--model", "b.gguf"])


def test_repeatable_flags_gather_and_replace_what_lies_further_away() -> None:
    argv = ["--api-key", "a", "--api-key", "b,c"]
    assert settle(argv, {"ASYNCPAGE_API_KEY": "z"}).server.api_key == ("a", "b,c")
    assert settle([], {"ASYNCPAGE_API_KEY": "x, y"}).server.api_key == ("x", "y")


def test_a_flag_given_twice_takes_its_last_value() -> None:
    assert settle(["--port", "1", "--port", "2"]).server.port == 2


def test_flags_known_by_habit_are_understood() -> None:
    assert settle(["--disable-log-requests"]).server.log_requests is False
    assert settle(["--no-log-requests"]).server.log_requests is False
    assert settle(["--port", "1", "m.gguf"]).engine.model == "m.gguf"
    assert settle(["m.gguf", "--port", "1"]).engine.model == "m.gguf"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[engine]\nmax_num_seq = 1", r"\[engine\] has no setting max_num_seq, did you mean max_num_seqs\?"),
        ("[engine]\nport = 1", r"\[engine\] has no setting port; it belongs under \[server\]\."),
        ("[server]\nxyzzy = 1", r"\[server\] has no setting xyzzy\."),
        ("[sever]\nport = 1", r"sever is not a table of settings, did you mean server\?"),
        ("port = 1", r"port is not a table of settings.*\[engine\] or \[server\]"),
        ("[engine", "is not TOML"),
        ('[engine]\nmax_num_seqs = "4"', r"\[engine\] max_num_seqs takes a whole number of requests, got '4'"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        settle(["--config", str(path)])


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        settle(["--config", str(tmp_path / "none.toml")])
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not TOML"):
        settle(["--config", str(tmp_path / "binary.toml")])


def test_a_variable_that_looks_like_a_setting_and_is_none_is_pointed_out() -> None:
    found = settle([], {"ASYNCPAGE_MAX_SEQS": "1", "ASYNCPAGE_CACHE": "/c", "PATH": "/bin"}).notes
    assert found == ("ASYNCPAGE_MAX_SEQS is set but names no setting, did you mean ASYNCPAGE_MAX_NUM_SEQS?",)


def test_what_is_shown_is_toml_that_gives_the_same_settings(tmp_path: Path) -> None:
    argv = ["--kv-cache-bytes", "1G", "--served-model-name", 'a "b"', "--request-timeout", "1.5", "--no-log-requests"]
    settings = settle(["/models/ünï.gguf", *argv])
    path = tmp_path / "shown.toml"
    path.write_text(show(settings), encoding="utf-8")
    again = settle(["--config", str(path)])
    assert (again.engine, again.server) == (settings.engine, settings.server)
    assert set(tomllib.loads(path.read_text())) == {"engine", "server"}


def test_what_is_shown_names_every_source_and_no_key(file: Path) -> None:
    text = show(settle(["--config", str(file), "--api-key", "hunter2"], {"ASYNCPAGE_HOST": "::1"}))
    lines = {line.split(" = ")[0]: line for line in text.splitlines()}
    assert "hunter2" not in text
    assert re.search(r"^# api_key is not shown \(1 given\) +# --api-key$", text, re.MULTILINE)
    assert lines["max_num_seqs"].endswith(f"# {file} [engine] max_num_seqs")
    assert lines["host"].endswith("# ASYNCPAGE_HOST")
    assert "# max_model_len is not set" in text


def test_settings_that_cannot_work_together_are_refused() -> None:
    with pytest.raises(UsageError, match="not both"):
        settle(["--kv-cache-bytes", "1G", "--num-kv-blocks", "5"]).check()
    with pytest.raises(UsageError, match="--port must be between"):
        settle(["--port", "70000"]).check()

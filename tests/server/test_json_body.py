"""Bodies: whatever bytes come, the answer is a JSON object or a refusal."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.errors import RequestError
from asyncpage.server.json_body import (
    FEW_BYTES,
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_STRINGS,
    MAX_VALUES,
    check_values,
    parse_object,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def refusal(raw: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        check_values(parse_object(raw))
    assert caught.value.failure.status == 400
    return caught.value


@settings(deadline=None)
@given(st.dictionaries(st.text(), JSON, max_size=5), st.booleans())
def test_every_json_object_is_read_as_the_standard_library_reads_it(value: dict, escaped: bool) -> None:
    raw = json.dumps(value, ensure_ascii=escaped).encode()
    body = parse_object(raw)
    check_values(body)
    assert body.fields == value


@settings(deadline=None)
@given(st.binary(max_size=200) | st.text(alphabet='{}[]":,\\u0dDeE+-19NaIf \n', max_size=80).map(str.encode))
def test_any_bytes_are_an_object_or_a_refusal(raw: bytes) -> None:
    failure = None
    try:
        check_values(parse_object(raw))
    except RequestError as error:
        failure = error.failure
    if failure is not None:
        assert failure.status == 400
        failure.message.encode()
        (failure.param or "").encode()


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b'{"a": 1', "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b'{"a": 1} x', "not JSON"),
        (b"[1]", "a list"),
        (b"null", "null"),
        (b"true", "a boolean"),
        (b"3", "a number"),
        (b'"text"', "a string"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "'c' twice"),
        (b'{"a": ' + b"9" * 5000 + b"}", "too many digits"),
    ],
)
def test_what_is_no_json_object_is_refused_and_told(raw: bytes, told: str) -> None:
    assert told in refusal(raw).failure.message


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b'{"a": NaN}', "a"),
        (b'{"a": [1, {"b": -Infinity}]}', "a.1.b"),
        (b'{"a": "\\ud800"}', "a"),
        (b'{"a": {"b": ["x", "\\uDFFFy"]}}', "a.b.1"),
        (b'{"a": {"\\ud800": 1}}', "a.?"),
    ],
)
def test_numbers_and_texts_that_are_none_are_refused_by_path(raw: bytes, param: str) -> None:
    assert refusal(raw).failure.param == param


def test_a_whole_surrogate_pair_is_text() -> None:
    body = parse_object(b'{"a": "\\ud83d\\ude00"}')
    check_values(body)
    assert body.fields == {"a": "\U0001f600"}


@pytest.mark.parametrize("pair", [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_is_bounded(pair: tuple[bytes, bytes]) -> None:
    def nested(levels: int) -> bytes:
        inner = levels - 1  # the outer object is one
        return b'{"x":' + pair[0] * inner + b"1" + pair[1] * inner + b"}"

    parse_object(nested(MAX_DEPTH))
    assert "nested" in refusal(nested(MAX_DEPTH + 1)).failure.message
    assert "nested" in refusal(nested(200_000)).failure.message
    assert "nested" in refusal(b"[" * 1_000_000).failure.message


def test_brackets_inside_strings_are_not_nesting() -> None:
    text = '[{"' * 1000 + "\\"
    assert parse_object(json.dumps({"a": text, "b": [text]}).encode()).fields == {"a": text, "b": [text]}


def test_a_string_that_never_ends_is_scanned_once() -> None:
    # A scan that starts again at every quote would take minutes here.
    refusal(b"[" * (MAX_DEPTH + 1) + b'"' + b'\\"' * 2_000_000)
    refusal(b'{"a":"' + b"[" * MAX_DEPTH * 2 + b'\\"' * 2_000_000)


@pytest.mark.parametrize(
    ("item", "most", "told"),
    [
        (b'"a"', MAX_STRINGS, "strings"),
        (b'"[{\\","', MAX_STRINGS, "strings"),
        (b"[]", MAX_CONTAINERS, "lists and objects"),
        (b"{}", MAX_CONTAINERS, "lists and objects"),
        (b"5", MAX_VALUES, "values"),
    ],
)
def test_the_parts_of_a_body_are_bounded_whatever_its_size_in_bytes(item: bytes, most: int, told: str) -> None:
    def body(count: int) -> bytes:
        return b'{"x":[' + b",".join([item] * count) + b"]}"

    room = most - (2 if told == "lists and objects" else 1)  # the object, its key and its list count too
    assert len(parse_object(body(room)).fields["x"]) == room
    assert told in refusal(body(most + 1)).failure.message


def test_keys_are_strings_too() -> None:
    keys = b",".join(b'"%d":0' % key for key in range(MAX_STRINGS + 1))
    assert "strings" in refusal(b"{" + keys + b"}").failure.message


def test_a_long_text_is_one_string_whatever_it_is_made_of() -> None:
    text = '",[{' * MAX_VALUES
    assert parse_object(json.dumps({"prompt": text}).encode()).fields == {"prompt": text}


def large_body(*items: bytes) -> bytes:
    return b'{"x":[' + b",".join(items) + b"]" + b" " * FEW_BYTES + b"}"


@pytest.mark.parametrize("shape", [b"%b", b"-%b", b"0.%b", b"%b.5", b"1e%b"])
def test_a_large_body_may_not_hold_numbers_that_take_long_to_read(shape: bytes) -> None:
    told = refusal(large_body(b"1", b'"a"', shape % (b"7" * (MAX_DIGITS + 1)))).failure.message
    assert f"more than {MAX_DIGITS} digits" in told


def test_numbers_of_up_to_a_thousand_digits_pass_in_a_large_body_and_longer_ones_in_a_small() -> None:
    longest = b"7" * MAX_DIGITS
    assert parse_object(large_body(longest, longest)).fields == {"x": [int(longest)] * 2}
    assert parse_object(b'{"x":7' + longest + b"}").fields == {"x": int(b"7" + longest)}


@pytest.mark.parametrize(("before", "after"), [("", ""), ('"[', ""), ("\\", '"')])
def test_digits_inside_strings_are_text_of_any_length(before: str, after: str) -> None:
    text = before + "9" * 2 * FEW_BYTES + after
    assert parse_object(json.dumps({"a": text, text: 1}).encode()).fields == {"a": text, text: 1}


def test_runs_of_nearly_too_many_digits_are_looked_at_once() -> None:
    # A scan that starts again at every digit would take minutes here.
    assert len(parse_object(large_body(*[b"7" * MAX_DIGITS] * 30_000)).fields["x"]) == 30_000

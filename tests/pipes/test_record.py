"""Records in dialects: what may be left out, what an older version wrote, values of several classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from asyncpage.errors import ProtocolError
from asyncpage.messages import Int32
from asyncpage.pipes.record import Dialect, pack, unpack


@dataclass(frozen=True, slots=True)
class Circle:
    radius: int


@dataclass(frozen=True, slots=True)
class Square:
    side: int
    label: str = ""


@dataclass(frozen=True, slots=True)
class Nothing:
    pass


@dataclass(frozen=True, slots=True)
class Drawing:
    shape: Circle | Square | None
    note: str | int | None = None
    more: tuple[Circle, ...] = ()
    pair: tuple[int, Square] | None = None


@dataclass(frozen=True, slots=True)
class Inner:
    kept: int
    gone: int = 0
    new: str = "new"


@dataclass(frozen=True, slots=True)
class Outer:
    inner: tuple[Inner, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    values: Int32


@pytest.mark.parametrize(
    "drawing",
    [
        Drawing(Circle(3)),
        Drawing(Square(4, "q"), note="n"),
        Drawing(None, note=7, more=(Circle(1), Circle(2)), pair=(5, Square(6))),
    ],
)
def test_a_value_that_may_be_of_several_classes_keeps_its_own(drawing: Drawing) -> None:
    assert unpack(Drawing, pack(drawing)) == drawing


@pytest.mark.parametrize(
    "plain",
    [
        (("Nothing", ()), None, (), None),  # a class, but not one of these
        (("Circle", (1, 2)), None, (), None),
        (("Circle",), None, (), None),
        (7, None, (), None),
        (None, 1.5, (), None),
    ],
)
def test_a_value_of_none_of_the_classes_is_refused(plain: Any) -> None:
    with pytest.raises(ProtocolError):
        Dialect().rebuild(Drawing, plain)


def test_a_class_without_fields_is_a_record_too() -> None:
    assert unpack(Nothing, pack(Nothing())) == Nothing()


def test_a_dialect_writes_something_else_in_place_of_a_class_or_a_field() -> None:
    dialect = Dialect({Circle: lambda circle: 0, (Square, "label"): lambda label: "*" * len(label)})
    drawing = Drawing(Square(4, "secret"), more=(Circle(1), Circle(2)))
    assert dialect.plain(drawing) == [["Square", [4, "******"]], None, [0, 0], None]
    # Another dialect is not touched.
    assert unpack(Drawing, pack(drawing)) == drawing


def test_what_an_older_version_wrote_is_read_by_name() -> None:
    dialect = Dialect(shapes={"Inner": ("removed", "gone", "kept")})
    assert dialect.rebuild(Outer, (((99, 1, 2), (99, 3, 4)),)) == Outer((Inner(2, 1), Inner(4, 3)))


def test_an_older_record_without_a_field_that_is_needed_is_refused_by_name() -> None:
    dialect = Dialect(shapes={"Inner": ("gone",)})
    with pytest.raises(ProtocolError, match=r"Outer\.inner: Inner was written without kept"):
        dialect.rebuild(Outer, (((1,),),))


def test_a_column_that_is_no_array_is_refused_when_it_is_written() -> None:
    with pytest.raises(ProtocolError, match="Column holds what no link carries"):
        pack(Column([1, 2]))  # type: ignore[arg-type]
    assert unpack(Column, pack(Column(np.array([1, 2], dtype=np.int32)))).values.tolist() == [1, 2]

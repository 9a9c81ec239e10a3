"""Models of many shapes, as people define them with pydantic; their schemas are what clients send."""

from __future__ import annotations

import datetime
import enum
import ipaddress
import uuid
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    UUID4,
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    PositiveInt,
    SecretStr,
    conint,
    conlist,
    constr,
)

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Empty(BaseModel):
    pass


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    age: int


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


class Defaults(BaseModel):
    a: int = 1
    b: str = "x"
    c: list[int] = []
    d: float | None = None


class Scalars(BaseModel):
    a: int
    b: float
    c: bool
    d: str
    e: None


class Bounded(BaseModel):
    a: int = Field(ge=1, le=10)
    b: float = Field(gt=0, lt=1)
    c: str = Field(min_length=1, max_length=5)
    d: PositiveInt
    e: Annotated[int, Field(multiple_of=5, ge=-20, le=20)]


class Pattern(BaseModel):
    zip: str = Field(pattern=r"^\d{5}(-\d{4})?$")
    slug: str = Field(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$", max_length=20)


class Enums(BaseModel):
    color: Color
    size: Size
    either: Literal["a", 1, True, None]


class Nested(BaseModel):
    inner: Strict
    more: list[Strict]


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


class Linked(BaseModel):
    value: str
    next: Linked | None = None


class Ping(BaseModel):
    pong: Pong | None = None


class Pong(BaseModel):
    ping: Ping | None = None


class Union1(BaseModel):
    value: int | str | list[bool]


class Cat(BaseModel):
    kind: Literal["cat"]
    meows: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    barks: float


class Pet(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")


class Zoo(BaseModel):
    animals: list[Annotated[Cat | Dog, Field(discriminator="kind")]]


class Maps(BaseModel):
    counts: dict[str, int]
    by_id: dict[int, str]
    nested: dict[str, dict[str, list[int]]]


class KeyedMap(BaseModel):
    by_color: dict[Color, int]
    by_code: dict[constr(pattern=r"^[A-Z]{2}$"), int]  # type: ignore[valid-type]


class Tuples(BaseModel):
    pair: tuple[int, str]
    many: tuple[float, ...]
    fixed: tuple[bool, bool, bool]


class Lists(BaseModel):
    some: conlist(int, min_length=1, max_length=3)  # type: ignore[valid-type]
    matrix: list[list[float]]


class Times(BaseModel):
    day: datetime.date
    at: datetime.datetime
    clock: datetime.time
    span: datetime.timedelta


class Identifiers(BaseModel):
    any: uuid.UUID
    four: UUID4
    host: ipaddress.IPv4Address
    host6: ipaddress.IPv6Address


class Links(BaseModel):
    url: HttpUrl
    other: AnyUrl


class Money(BaseModel):
    amount: Decimal
    limited: Decimal = Field(ge=0)


class Secrets(BaseModel):
    password: SecretStr
    data: bytes


class AnyValue(BaseModel):
    value: Any
    other: object


class Aliased(BaseModel):
    first_name: str = Field(alias="firstName", title="First", description="given name", examples=["Ada"])


class Deprecated(BaseModel):
    old: int = Field(deprecated=True, json_schema_extra={"x-order": 1})


class Base(BaseModel):
    id: int


class Derived(Base):
    label: str


class Page(BaseModel, Generic[T]):
    items: list[T]
    total: int = Field(ge=0)


class Answer(BaseModel):
    page: Page[Strict]


class Deep(BaseModel):
    a: dict[str, list[tuple[int, Strict | None]]]


class Quoted(BaseModel):
    value: Literal['a"b', "c\\d", "é", "line\nend"]


class Step(BaseModel):
    explanation: str
    output: str


class Reasoning(BaseModel):
    steps: list[Step]
    final_answer: str


class Ui(BaseModel):
    type: Literal["div", "button", "header"]
    label: str
    children: list[Ui]
    attributes: list[Attribute]


class Attribute(BaseModel):
    name: str
    value: str


class Extraction(BaseModel):
    title: str
    authors: list[str]
    year: Annotated[int, Field(ge=1900, le=2100)] | None
    keywords: list[str] = Field(max_length=10)


class Wide(BaseModel):
    a0: int
    a1: str
    a2: float | None
    a3: list[str] = []
    a4: bool = True
    a5: Color | None = None
    a6: Literal[1, 2, 3] = 1
    a7: dict[str, float] = {}
    a8: conint(ge=-5, le=500) = 0  # type: ignore[valid-type]
    a9: Strict | None = None
    b0: int
    b1: str
    b2: float | None
    b3: list[str] = []
    b4: bool = True
    b5: Color | None = None
    b6: Literal[1, 2, 3] = 1
    b7: dict[str, float] = {}
    b8: conint(ge=-5, le=500) = 0  # type: ignore[valid-type]
    b9: Strict | None = None


class Location(BaseModel):
    latitude: float = Field(ge=-90, le=90)
    longitude: float = Field(ge=-180, le=180)


class Sets(BaseModel):
    tags: set[Literal["a", "b", "c"]]
    colors: frozenset[Color] = Field(max_length=2)


class Booleans(BaseModel):
    flags: dict[Literal["on", "off"], bool]
    only: Literal[True]


class Contact(BaseModel):
    email: str = Field(json_schema_extra={"format": "email"})
    site: str | None = Field(default=None, json_schema_extra={"format": "hostname"})


class Optionals(BaseModel):
    a: int | None
    b: int | None = None
    c: list[int | None] | None = None


MODELS = [
    Empty, Strict, Open, Defaults, Scalars, Bounded, Pattern, Enums, Nested, Tree, Linked, Ping, Union1, Cat, Dog, Pet,
    Zoo, Maps, KeyedMap, Tuples, Lists, Times, Identifiers, Links, Money, Secrets, AnyValue, Aliased, Deprecated,
    Derived, Answer, Page[int], Page[Page[str]], Deep, Quoted, Step, Reasoning, Ui, Extraction, Wide, Location,
    Booleans, Contact, Optionals, Sets,
]  # fmt: skip

# Their schemas do not say all that they check: keys that are numbers, a URL's scheme, a decimal's text.
SAYS_LESS = {Maps, Links, Money}

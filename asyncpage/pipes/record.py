"""Records: frozen dataclasses as msgpack arrays, rebuilt only after every value has shown its declared type.

A dataclass becomes the list of its fields in order, `SamplingParams` a map of what differs from its defaults, an array
its raw bytes. Nothing is looked up by a name that came in, and nothing but numbers, strings, bytes, tuples, maps and
the dataclasses that the reader asked for is ever built.

INVARIANT: `unpack(cls, pack(value)) == value` for every value that keeps its class's annotations; for any other bytes
`unpack` raises `ProtocolError` after allocating no more than a small multiple of their length.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgpack
import numpy as np

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import ProtocolError

Plain = Callable[[Any], Any]
"""Turns a value into what msgpack takes, or back; on the way back a value of another type is a `ProtocolError`."""

T = TypeVar("T")


def pack(value: object) -> bytes:
    """Errors: `ProtocolError` when a field holds something that its annotation does not allow on a wire."""
    try:
        plain = _write(value)
        return cast(bytes, msgpack.packb(plain, default=_scalar, unicode_errors="surrogatepass"))
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"{type(value).__name__} holds what no link carries: {error}") from error


def unpack(cls: type[T], data: bytes) -> T:
    """Sequences come back as tuples. Errors: `ProtocolError` naming the field that is wrong."""
    try:
        plain = msgpack.unpackb(
            data,
            use_list=False,
            raw=False,
            unicode_errors="surrogatepass",
            ext_hook=_refuse_extension,
            timestamp=1,  # a number, like everything else that is no string
        )
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise ProtocolError(f"{cls.__name__}: not msgpack: {type(error).__name__} {error}") from None
    return cast(T, _reader(cast(Any, cls))(plain))


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} of {len(data)} bytes")


def _scalar(value: object) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} is not a plain value")


@cache
def _writer(cls: Any) -> Plain:
    """Only dataclasses change on the way out; what is inside their tuples is found by its own class."""
    if cls is SamplingParams:
        return SamplingParams.to_wire
    if is_dataclass(cls):
        names = [field.name for field in fields(cls)]
        return lambda value: [_write(getattr(value, name)) for name in names]
    if cls is tuple:
        return lambda value: [_write(item) for item in value]
    if issubclass(cls, np.ndarray):
        return lambda value: [value.dtype.str, value.shape, value.tobytes()]
    return lambda value: value


def _write(value: Any) -> Any:
    cls: Any = type(value)
    return _writer(cls)(value)


@cache
def _reader(annotation: Any) -> Plain:
    """A function that checks a plain value against a type annotation and rebuilds what it stands for."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return lambda plain: plain
    if annotation is SamplingParams:
        return _sampling_reader()
    if is_dataclass(annotation):
        return _dataclass_reader(cast(type[Any], annotation))
    if hasattr(annotation, "__supertype__"):  # NewType
        return _reader(annotation.__supertype__)
    if origin is np.ndarray:
        return _array_reader(get_args(arguments[1])[0])
    if origin is Literal:
        return _checked(lambda plain: type(plain) is str and plain in arguments, f"one of {arguments}")
    if origin in (Union, types.UnionType):
        return _optional_reader(arguments)
    if origin is tuple:
        return _tuple_reader(arguments)
    if origin in (dict, Mapping):
        return _checked(lambda plain: type(plain) is dict and all(type(key) is str for key in plain), "a map by name")
    if annotation is float:
        return _checked(lambda plain: type(plain) in (float, int), "a number")
    if annotation in (int, str, bytes, bool):
        return _checked(lambda plain: type(plain) is annotation, annotation.__name__)
    raise TypeError(f"{annotation} cannot cross a link")


def _checked(is_right: Callable[[Any], bool], expected: str) -> Plain:
    def read(plain: Any) -> Any:
        if not is_right(plain):
            raise _mismatch(expected, plain)
        return plain

    return read


def _mismatch(expected: str, plain: Any) -> ProtocolError:
    return ProtocolError(f"expected {expected}, found {type(plain).__name__} {plain!r:.40}")


def _dataclass_reader(cls: type[Any]) -> Plain:
    hints = get_type_hints(cls)
    readers = [(field.name, _reader(hints[field.name])) for field in fields(cls)]

    def read(plain: Any) -> Any:
        if type(plain) is not tuple or len(plain) != len(readers):
            raise _mismatch(f"the {len(readers)} fields of {cls.__name__}", plain)
        return cls(*(_field(cls, name, reader, item) for (name, reader), item in zip(readers, plain, strict=True)))

    return read


def _sampling_reader() -> Plain:
    hints = get_type_hints(SamplingParams)
    readers = {field.name: _reader(hints[field.name]) for field in fields(SamplingParams)}

    def read(plain: Any) -> Any:
        if type(plain) is not dict or not plain.keys() <= readers.keys():
            raise _mismatch("sampling parameters by name", plain)
        return SamplingParams(
            **{name: _field(SamplingParams, name, readers[name], item) for name, item in plain.items()}
        )

    return read


def _field(cls: type, name: str, reader: Plain, plain: Any) -> Any:
    try:
        return reader(plain)
    except ProtocolError as error:
        raise ProtocolError(f"{cls.__name__}.{name}: {error}") from None


def _optional_reader(arguments: tuple[Any, ...]) -> Plain:
    (inner,) = (_reader(argument) for argument in arguments if argument is not types.NoneType)
    return lambda plain: None if plain is None else inner(plain)


def _tuple_reader(arguments: tuple[Any, ...]) -> Plain:
    if arguments[-1] is Ellipsis:
        if arguments[0] in (int, str, bytes):  # may be thousands long
            only = {arguments[0]}
            return _checked(
                lambda plain: type(plain) is tuple and set(map(type, plain)) <= only,
                f"a sequence of {arguments[0].__name__}",
            )
        item = _reader(arguments[0])

        def read(plain: Any) -> Any:
            if type(plain) is not tuple:
                raise _mismatch("a sequence", plain)
            return tuple([item(value) for value in plain])

        return read
    items = [_reader(argument) for argument in arguments]

    def read_fixed(plain: Any) -> Any:
        if type(plain) is not tuple or len(plain) != len(items):
            raise _mismatch(f"{len(items)} values", plain)
        return tuple([reader(value) for reader, value in zip(items, plain, strict=True)])

    return read_fixed


def _array_reader(scalar: type[np.generic]) -> Plain:
    dtype = np.dtype(scalar)

    def read(plain: Any) -> Any:
        name, shape, data = plain if type(plain) is tuple and len(plain) == 3 else ("", None, b"")
        if (
            name != dtype.str
            or type(shape) is not tuple
            or not 1 <= len(shape) <= 2
            or any(type(size) is not int or not 0 <= size < 1 << 31 for size in shape)
            or type(data) is not bytes
            or math.prod(shape) * dtype.itemsize != len(data)
        ):
            raise _mismatch(f"an array of {dtype}", plain)
        return np.frombuffer(data, dtype).reshape(shape)

    return read

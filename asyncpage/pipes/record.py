"""Records: frozen dataclasses as msgpack arrays, rebuilt only after every value has shown its declared type.

A dataclass becomes the list of its fields in order, `SamplingParams` a map of what differs from its defaults, an array
its raw bytes, a value that may be of several dataclasses its class's name and its fields. Nothing is looked up by a
name that came in beyond the names that an annotation allows, and nothing but numbers, strings, bytes, tuples, maps and
the dataclasses that the reader asked for is ever built. `pack` and `unpack` serve both ends of one version; the
journal has a `Dialect` of its own, which leaves out what may not be kept and reads what an older version wrote.

INVARIANT: `unpack(cls, pack(value)) == value` for every value that keeps its class's annotations; for any other bytes
`unpack` raises `ProtocolError` after allocating no more than a small multiple of their length.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from operator import attrgetter
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
    return _TODAY.pack(value)


def unpack(cls: type[T], data: bytes) -> T:
    """Sequences come back as tuples. Errors: `ProtocolError` naming the field that is wrong."""
    return _TODAY.unpack(cls, data)


def unpack_plain(data: bytes) -> Any:
    """What msgpack says, with tuples for sequences and no extension types. Errors: `ProtocolError`."""
    try:
        return msgpack.unpackb(
            data,
            use_list=False,
            raw=False,
            unicode_errors="surrogatepass",
            ext_hook=_refuse_extension,
            timestamp=1,  # a number, like everything else that is no string
        )
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise ProtocolError(f"not msgpack: {type(error).__name__} {error}") from None


class Dialect:
    """How dataclasses become plain values and back.

    `writers`: what to write in place of a value, by its annotation, or by class and field; kept as `replaced`.
    `shapes`: the fields, in order, that the writer's version of a class had, by the class's name; a class that is not
    there is read as it is today.
    """

    def __init__(
        self,
        writers: Mapping[Any, Plain] | None = None,
        shapes: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.replaced = writers or {}
        self._shapes = shapes or {}
        self._writers: dict[Any, Plain | None] = {}
        self._readers: dict[Any, Plain] = {}

    def pack(self, value: object) -> bytes:
        """Errors: `ProtocolError` when a field holds something that its annotation does not allow on a wire."""
        try:
            packed: bytes = msgpack.packb(self.plain(value), default=scalar, unicode_errors="surrogatepass")
            return packed
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise ProtocolError(f"{type(value).__name__} holds what no link carries: {error}") from error

    def unpack(self, cls: type[T], data: bytes) -> T:
        """Sequences come back as tuples. Errors: `ProtocolError` naming the field that is wrong."""
        try:
            plain = unpack_plain(data)
        except ProtocolError as error:
            raise ProtocolError(f"{cls.__name__}: {error}") from None
        return self.rebuild(cls, plain)

    def rebuild(self, annotation: type[T], plain: object) -> T:
        """The value that a plain one stands for. Errors: `ProtocolError` naming the field that is wrong."""
        return cast(T, self._reader(annotation)(plain))

    def plain(self, value: object) -> Any:
        """What `pack` gives to msgpack, with `scalar` as its default. Errors: whatever a wrong value raises."""
        write = self._writer(type(value))
        return value if write is None else write(value)

    # --- writing -----------------------------------------------------------------------------------------------------

    def _writer(self, annotation: Any) -> Plain | None:
        """What makes a value of this annotation plain; None where it is plain already."""
        if annotation not in self._writers:
            self._writers[annotation] = self._new_writer(annotation)
        return self._writers[annotation]

    def _new_writer(self, annotation: Any) -> Plain | None:
        origin, arguments = get_origin(annotation), get_args(annotation)
        if annotation in self.replaced:
            return self.replaced[annotation]
        if annotation is SamplingParams:
            return SamplingParams.to_wire
        if annotation in (Any, object):
            return self.plain
        if is_dataclass(annotation):
            return self._dataclass_writer(cast(type[Any], annotation))
        if annotation is tuple:
            return lambda value: [self.plain(item) for item in value]
        if np.ndarray in (annotation, origin):
            return lambda value: [value.dtype.str, value.shape, value.tobytes()]
        if hasattr(annotation, "__supertype__"):  # NewType
            return self._writer(annotation.__supertype__)
        if origin in (Union, types.UnionType):
            return self._union_writer([item for item in arguments if item is not types.NoneType])
        if origin is tuple:
            return self._tuple_writer(arguments)
        return None

    def _dataclass_writer(self, cls: type[Any]) -> Plain:
        hints = get_type_hints(cls)
        names = [field.name for field in fields(cls)]
        if not names:
            return lambda value: []
        get = attrgetter(names[0], *names)  # never a single name, for which it would return no tuple
        writers = [(at, self.replaced.get((cls, name)) or self._writer(hints[name])) for at, name in enumerate(names)]
        at_work = [(at, write) for at, write in writers if write is not None]

        def write(value: Any) -> Any:
            row = list(get(value))
            del row[0]
            for at, write in at_work:
                row[at] = write(row[at])
            return row

        return write

    def _union_writer(self, members: list[Any]) -> Plain | None:
        if len(members) == 1:
            write = self._writer(members[0])
            return None if write is None else lambda value: None if value is None else write(value)
        if not any(map(is_dataclass, members)):
            return None

        def write_named(value: Any) -> Any:
            plain = self.plain(value)
            return [type(value).__name__, plain] if is_dataclass(value) else plain

        return write_named

    def _tuple_writer(self, arguments: tuple[Any, ...]) -> Plain | None:
        if arguments[-1] is Ellipsis:
            write = self._writer(arguments[0])
            return None if write is None else lambda value: [write(item) for item in value]
        writers = [self._writer(argument) or _as_it_is for argument in arguments]
        if all(write is _as_it_is for write in writers):
            return None
        return lambda value: [write(item) for write, item in zip(writers, value, strict=True)]

    # --- reading -----------------------------------------------------------------------------------------------------

    def _reader(self, annotation: Any) -> Plain:
        """A function that checks a plain value against a type annotation and rebuilds what it stands for."""
        if annotation not in self._readers:
            self._readers[annotation] = self._new_reader(annotation)
        return self._readers[annotation]

    def _new_reader(self, annotation: Any) -> Plain:
        origin, arguments = get_origin(annotation), get_args(annotation)
        if annotation in (Any, object):
            return _as_it_is
        if annotation is SamplingParams:
            return self._sampling_reader()
        if is_dataclass(annotation):
            return self._dataclass_reader(cast(type[Any], annotation))
        if hasattr(annotation, "__supertype__"):  # NewType
            return self._reader(annotation.__supertype__)
        if origin is np.ndarray:
            return _array_reader(get_args(arguments[1])[0])
        if origin is Literal:
            return _checked(lambda plain: type(plain) is str and plain in arguments, f"one of {arguments}")
        if origin in (Union, types.UnionType):
            return self._union_reader(arguments)
        if origin is tuple:
            return self._tuple_reader(arguments)
        if origin in (dict, Mapping):
            return _checked(
                lambda plain: type(plain) is dict and all(type(key) is str for key in plain), "a map by name"
            )
        if annotation is float:
            return _checked(lambda plain: type(plain) in (float, int), "a number")
        if annotation in (int, str, bytes, bool):
            return _checked(lambda plain: type(plain) is annotation, annotation.__name__)
        raise TypeError(f"{annotation} cannot cross a link")

    def _dataclass_reader(self, cls: type[Any]) -> Plain:
        hints = get_type_hints(cls)
        today = [field.name for field in fields(cls)]
        shape = self._shapes.get(cls.__name__, tuple(today))
        needed = {field.name for field in fields(cls) if field.default is field.default_factory is MISSING}
        missing = needed.difference(shape)
        # A field that is not there any more is passed over.
        places = [(name, self._reader(hints[name]), at) for at, name in enumerate(shape) if name in hints]

        def read(plain: Any) -> Any:
            if type(plain) is not tuple or len(plain) != len(shape):
                raise _mismatch(f"the {len(shape)} fields of {cls.__name__}", plain)
            if missing:
                raise ProtocolError(f"{cls.__name__} was written without {', '.join(sorted(missing))}")
            return cls(**{name: _field(cls, name, reader, plain[at]) for name, reader, at in places})

        return read

    def _sampling_reader(self) -> Plain:
        hints = get_type_hints(SamplingParams)
        readers = {field.name: self._reader(hints[field.name]) for field in fields(SamplingParams)}

        def read(plain: Any) -> Any:
            if type(plain) is not dict or not plain.keys() <= readers.keys():
                raise _mismatch("sampling parameters by name", plain)
            return SamplingParams(
                **{name: _field(SamplingParams, name, readers[name], item) for name, item in plain.items()}
            )

        return read

    def _union_reader(self, arguments: tuple[Any, ...]) -> Plain:
        members = [argument for argument in arguments if argument is not types.NoneType]
        may_be_none = len(members) < len(arguments)
        if len(members) == 1:
            inner = self._reader(members[0])
            return lambda plain: None if plain is None else inner(plain)
        named = {cast(type, member).__name__: self._reader(member) for member in members if is_dataclass(member)}
        simple = {member for member in members if member in (int, str, bytes, bool, float)}
        if len(named) + len(simple) < len(members):
            raise TypeError(f"one of {members} cannot cross a link")

        def read(plain: Any) -> Any:
            if plain is None and may_be_none:
                return None
            if type(plain) is tuple and len(plain) == 2 and type(plain[0]) is str and plain[0] in named:
                return named[plain[0]](plain[1])
            if type(plain) not in simple:
                raise _mismatch(f"one of {', '.join(member.__name__ for member in members)}", plain)
            return plain

        return read

    def _tuple_reader(self, arguments: tuple[Any, ...]) -> Plain:
        if not arguments:
            return _checked(lambda plain: plain == (), "nothing")
        if arguments[-1] is Ellipsis:
            simple = getattr(arguments[0], "__supertype__", arguments[0])
            if simple in (int, str, bytes):  # may be thousands long
                only = {simple}
                return _checked(
                    lambda plain: type(plain) is tuple and set(map(type, plain)) <= only,
                    f"a sequence of {simple.__name__}",
                )
            item = self._reader(arguments[0])

            def read(plain: Any) -> Any:
                if type(plain) is not tuple:
                    raise _mismatch("a sequence", plain)
                return tuple([item(value) for value in plain])

            return read
        items = [self._reader(argument) for argument in arguments]

        def read_fixed(plain: Any) -> Any:
            if type(plain) is not tuple or len(plain) != len(items):
                raise _mismatch(f"{len(items)} values", plain)
            return tuple([reader(value) for reader, value in zip(items, plain, strict=True)])

        return read_fixed


_TODAY = Dialect()


def _as_it_is(value: Any) -> Any:
    return value


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} of {len(data)} bytes")


def scalar(value: object) -> Any:
    """msgpack's `default`: a numpy scalar is the number it stands for. Errors: `TypeError` for everything else."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} is not a plain value")


def _checked(is_right: Callable[[Any], bool], expected: str) -> Plain:
    def read(plain: Any) -> Any:
        if not is_right(plain):
            raise _mismatch(expected, plain)
        return plain

    return read


def _mismatch(expected: str, plain: Any) -> ProtocolError:
    return ProtocolError(f"expected {expected}, found {type(plain).__name__} {plain!r:.40}")


def _field(cls: type, name: str, reader: Plain, plain: Any) -> Any:
    try:
        return reader(plain)
    except ProtocolError as error:
        raise ProtocolError(f"{cls.__name__}.{name}: {error}") from None


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

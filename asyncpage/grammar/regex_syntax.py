r"""Reads regular expressions: the syntax that ECMA-262, Python and Rust share, into a tree.

`regex` and schemas' `pattern` come here. Known: literals, escapes, \d \w \s and their opposites, classes, groups
(capturing, named, non-capturing), greedy and lazy quantifiers (the same language), alternation, ^ and $ for the ends
of the text, the dot (no line ends), lookaheads at the beginning, and (?i) and (?s) there. What needs more than a
finite automaton, or means different things in these dialects, is refused by name.

INVARIANT: nesting and size are bounded before anything is unfolded, and a pattern's own text is in no error.
"""

from __future__ import annotations

from asyncpage.grammar.charset import ANY, CharSet, charset, one_of
from asyncpage.grammar.refusal import invalid, too_large, unsupported
from asyncpage.grammar.regex_case import case_closed
from asyncpage.grammar.regex_classes import CLASSES, DOTS
from asyncpage.grammar.regex_tree import Alternatives, Anchor, Chars, Pattern, Repeat, Sequence, Tree, positions

MAX_PATTERN = 65_536  # characters; the longest that people write have some thousand
MAX_GROUPS_DEEP = 100  # people nest a handful; the compiler recurses this deep
MAX_POSITIONS = 20_000  # states after unfolding counts, before any is shared

_CONTROL = {"t": 0x9, "n": 0xA, "v": 0xB, "f": 0xC, "r": 0xD, "0": 0x0}
_QUANTIFIERS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_HEX = frozenset("0123456789abcdefABCDEF")
_DIGITS = frozenset("0123456789")


def parse_regex(pattern: str, path: tuple[str, ...] = ()) -> Pattern:
    """Errors: 400, `path` as its `param`."""
    if len(pattern) > MAX_PATTERN:
        raise too_large(f"a pattern may have at most {MAX_PATTERN} characters, got {len(pattern)}", path)
    parsed = _Parser(pattern, path).parse()
    size = positions(parsed.tree) + sum(positions(tree) for _, tree in parsed.ahead)
    if size > MAX_POSITIONS:
        raise too_large(f"the pattern unfolds to more than {MAX_POSITIONS} places: lower its counts", path)
    return parsed


class _Group:
    """A group that is open: the options that are complete, and the one that is being read.

    `looks`: "=" or "!" for a lookahead. Inside of one that must not be there, a class is all that it may hold in some
    dialect, as in a negated class, so that what is left is right in every one.
    """

    def __init__(self, outer: _Group | None = None, looks: str = "") -> None:
        self.options: list[Tree] = []
        self.parts: list[Tree] = []
        self.ignores_case: bool = outer is not None and outer.ignores_case
        self.is_dot_all: bool = outer is not None and outer.is_dot_all
        self.is_wide: bool = looks == "!" or (outer is not None and outer.is_wide)
        self.looks = looks

    def close(self) -> Tree:
        options = [*self.options, _sequence(self.parts)]
        return options[0] if len(options) == 1 else Alternatives(tuple(options))


class _Parser:
    def __init__(self, pattern: str, path: tuple[str, ...]) -> None:
        self._text = pattern
        self._path = path
        self._at = 0
        self._ahead: list[tuple[bool, Tree]] = []

    def parse(self) -> Pattern:
        """A stack of open groups, not recursion: depth is a number to check."""
        stack = [_Group()]
        while self._at < len(self._text):
            group = stack[-1]
            char = self._text[self._at]
            if char == "(":
                self._at += 1
                is_at_start = len(stack) == 1 and not group.options and all(map(_is_start, group.parts))
                opened = self._open_group(group, is_first=self._at == 1, is_at_start=is_at_start)
                if opened is not None:
                    stack.append(opened)
                if len(stack) > MAX_GROUPS_DEEP:
                    raise too_large(f"the pattern nests more than {MAX_GROUPS_DEEP} groups", self._path)
            elif char == ")":
                if len(stack) == 1:
                    raise self._invalid("a ')' without its '('")
                self._at += 1
                closed = stack.pop()
                if closed.looks:
                    self._ahead.append((closed.looks == "!", closed.close()))
                else:
                    stack[-1].parts.append(self._quantified(closed.close()))
            elif char == "|":
                if len(stack) == 1 and self._ahead:
                    raise unsupported("the pattern has a lookahead in one of several options", self._path)
                self._at += 1
                group.options.append(_sequence(group.parts))
                group.parts = []
            else:
                group.parts.append(self._quantified(self._atom(group)))
        if len(stack) > 1:
            raise self._invalid("a '(' without its ')'")
        return Pattern(stack[0].close(), tuple(self._ahead))

    # --- groups -------------------------------------------------------------------------------------------------------

    def _open_group(self, outer: _Group, *, is_first: bool, is_at_start: bool) -> _Group | None:
        """The group after a '('; None for flags, which change the group around them."""
        group = _Group(outer)
        if not self._takes("?"):
            return group
        if self._takes(":"):
            return group
        if self._takes("P<") or (self._text.startswith("<", self._at) and self._next(1) not in ("=", "!")):
            self._takes("<")
            end = self._text.find(">", self._at)
            if end < 0 or not self._text[self._at : end].isidentifier():
                raise self._invalid("a group's name is no name")
            self._at = end + 1
            return group
        if is_at_start and self._next() in ("=", "!"):
            self._at += 1
            return _Group(outer, self._text[self._at - 1])
        for opening, name in (
            ("=", "lookahead"), ("!", "lookahead"), ("<=", "lookbehind"), ("<!", "lookbehind"),
            (">", "an atomic group"), ("(", "a conditional"), ("P=", "a backreference"), ("#", "a comment"),
        ):  # fmt: skip
            if self._text.startswith(opening, self._at):
                raise unsupported(f"the pattern has {name} at character {self._at}, which is not supported", self._path)
        start = self._at
        while self._next() in ("i", "s"):
            self._at += 1
        flags = self._text[start : self._at]
        is_scoped = self._next() == ":"
        if not flags or not (is_scoped or (self._next() == ")" and is_first)):
            raise unsupported(
                f"the pattern has flags at character {start}; supported are i and s, at the beginning or for a group",
                self._path,
            )
        self._at += 1
        changed = group if is_scoped else outer
        changed.ignores_case |= "i" in flags
        changed.is_dot_all |= "s" in flags
        return group if is_scoped else None

    # --- quantifiers --------------------------------------------------------------------------------------------------

    def _quantified(self, part: Tree) -> Tree:
        start = self._at
        counts = self._quantifier()
        if counts is None:
            return part
        if isinstance(part, Anchor):
            raise self._invalid("a quantifier follows an anchor", start)
        if self._takes("+"):
            raise unsupported(f"the pattern has a possessive quantifier at character {start}", self._path)
        self._takes("?")  # lazy: the same texts match
        low, high = counts
        if high is not None and high < low:
            raise self._invalid(f"a count asks for at least {low} and at most {high}", start)
        if self._quantifier() is not None:
            raise self._invalid("a quantifier follows a quantifier", start)
        return Repeat(part, low, high)

    def _quantifier(self) -> tuple[int, int | None] | None:
        """The counts of a quantifier that comes next, which is then read."""
        char = self._next()
        if char in _QUANTIFIERS:
            self._at += 1
            return _QUANTIFIERS[char]
        if char != "{":
            return None
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : end].partition(",") if end > 0 else ("", "", "")
        if not (_is_number(low) or (comma and _is_number(high))) or (high and not _is_number(high)):
            return None  # a brace that stands for itself
        if not low:
            raise self._invalid("{,n} means different things in different dialects: write {0,n}")
        if max(len(low), len(high)) > 9:
            raise too_large("the pattern counts to more than nine digits", self._path)
        self._at = end + 1
        return int(low), (int(high) if high else None) if comma else int(low)

    # --- atoms --------------------------------------------------------------------------------------------------------

    def _atom(self, group: _Group) -> Tree:
        char = self._text[self._at]
        start = self._at
        if self._quantifier() is not None:
            raise self._invalid("a quantifier with nothing before it", start)
        self._at += 1
        match char:
            case "^" | "$":
                return Anchor(char == "$")
            case ".":
                return Chars(ANY if group.is_dot_all else DOTS[group.is_wide])
            case "[":
                return Chars(self._class(group))
            case "\\":
                if self._next() in ("A", "z", "Z"):
                    self._at += 1
                    return Anchor(self._text[self._at - 1] != "A")
                if (named := CLASSES.get(self._next())) is not None:
                    self._at += 1
                    return Chars(named[group.is_wide])
                return Chars(_cased(charset([(point := self._escape(), point)]), group, group.is_wide))
        return Chars(_cased(self._checked(one_of(char)), group, group.is_wide))

    def _class(self, group: _Group) -> CharSet:
        start = self._at - 1
        is_negated = self._takes("^")
        is_wide = group.is_wide != is_negated
        found: list[CharSet] = []
        if self._next() == "]":
            raise self._invalid("an empty class, or one that begins with ']': write \\]", start)
        while not self._takes("]"):
            if self._at >= len(self._text):
                raise self._invalid("a '[' without its ']'", start)
            if self._text.startswith(("[:", "[=", "[."), self._at):
                raise unsupported(f"the pattern has a POSIX class at character {self._at}", self._path)
            if self._text.startswith(("&&", "--", "~~"), self._at):
                raise unsupported(f"the pattern has an operation on classes at character {self._at}", self._path)
            first = self._class_member(is_wide)
            if self._next() == "-" and self._next(1) not in ("]", ""):
                self._at += 1
                last = self._class_member(is_wide)
                if isinstance(first, CharSet) or isinstance(last, CharSet):
                    raise self._invalid("a range of a class has a class for its end", start)
                if last < first:
                    raise self._invalid("a range of a class ends before it begins", start)
                found.append(charset([(first, last)]))
            else:
                found.append(first if isinstance(first, CharSet) else charset([(first, first)]))
        whole = _cased(charset(span for chars in found for span in chars.ranges), group, is_wide)
        return ~whole if is_negated else whole

    def _class_member(self, is_wide: bool) -> CharSet | int:
        """A character, or the set that a named class stands for."""
        char = self._next()
        self._at += 1
        if char == "":
            raise self._invalid("a '[' without its ']'")
        if char != "\\":
            self._checked(one_of(char))
            return ord(char)
        letter = self._next()
        if letter in CLASSES:
            self._at += 1
            return CLASSES[letter][is_wide]
        if letter == "b":
            self._at += 1
            return 0x8
        return self._escape()

    def _escape(self) -> int:
        """The code point of the escape after a backslash."""
        char = self._next()
        start = self._at
        self._at += 1
        match char:
            case "b" | "B":
                raise unsupported(f"the pattern has a word boundary at character {start}", self._path)
            case "p" | "P":
                raise unsupported(f"the pattern has a Unicode property at character {start}", self._path)
            case "k" | "1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9":
                raise unsupported(f"the pattern has a backreference at character {start}", self._path)
            case "x":
                return self._hex(2)
            case "u":
                return self._unicode()
            case "U":
                return self._point(self._hex(8))
            case "c" if self._next().isascii() and self._next().isalpha():
                self._at += 1
                return ord(self._text[self._at - 1]) % 32
            case "0" if self._next() in _DIGITS and self._next():
                raise unsupported(f"the pattern has an octal escape at character {start}", self._path)
        if char in _CONTROL:
            return _CONTROL[char]
        if char == "" or (char.isascii() and char.isalnum()):
            raise self._invalid("an unknown escape", start)
        self._checked(one_of(char))
        return ord(char)

    def _unicode(self) -> int:
        if self._takes("{"):
            end = self._text.find("}", self._at)
            digits = self._text[self._at : end] if end > 0 else ""
            if not 1 <= len(digits) <= 8 or not set(digits) <= _HEX:
                raise self._invalid("an escape \\u{...} without its digits")
            self._at = end + 1
            return self._point(int(digits, 16))
        first = self._hex(4)
        if 0xD800 <= first <= 0xDBFF and self._takes("\\u"):
            second = self._hex(4)
            if 0xDC00 <= second <= 0xDFFF:
                return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)
        return self._point(first)

    def _hex(self, digits: int) -> int:
        text = self._text[self._at : self._at + digits]
        if len(text) < digits or not set(text) <= _HEX:
            raise self._invalid(f"an escape that needs {digits} hexadecimal digits")
        self._at += digits
        return int(text, 16)

    def _point(self, point: int) -> int:
        if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
            raise self._invalid("an escape for what is no character")
        return point

    # --- the text -----------------------------------------------------------------------------------------------------

    def _checked(self, chars: CharSet) -> CharSet:
        if not chars:
            raise self._invalid("a lone surrogate")
        return chars

    def _next(self, ahead: int = 0) -> str:
        return self._text[self._at + ahead : self._at + ahead + 1]

    def _takes(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _invalid(self, what: str, at: int | None = None) -> Exception:
        return invalid(f"the pattern is malformed at character {self._at if at is None else at}: {what}", self._path)


def _sequence(parts: list[Tree]) -> Tree:
    return parts[0] if len(parts) == 1 else Sequence(tuple(parts))


def _cased(chars: CharSet, group: _Group, is_wide: bool) -> CharSet:
    return case_closed(chars, is_wide=is_wide) if group.ignores_case else chars


def _is_start(part: Tree) -> bool:
    return isinstance(part, Anchor) and not part.is_end


def _is_number(text: str) -> bool:
    return bool(text) and set(text) <= _DIGITS

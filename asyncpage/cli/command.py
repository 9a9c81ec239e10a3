"""What a command of the command line is made of.

`main` reads these values and builds the parser from them; the command modules each hold one.

INVARIANT: importing a command module is cheap; whatever is heavy is imported when the command runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Command:
    """One word after `asyncpage`.

    `words` are what its usage line shows behind its name, `summary` is its line in the overview, `examples` is what
    its `--help` ends with. `declare` adds its flags to a
    parser; `run` does the work with the parsed flags and the process's environment and returns the exit code.
    """

    name: str
    words: str
    summary: str
    examples: str
    declare: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Environment], int]

"""The words for a model of the Hugging Face Hub: `ORG/NAME`, a revision behind `@`, a GGUF file behind `:`.

The store asks whether a word is such a name, the cache looks for it, the command line fetches it.

INVARIANT: no part of a name leads out of the folder that is made from it.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from importlib.util import find_spec

MAIN = "main"
INSTALL = "pip install 'asyncpage[hub]'"

_PART = r"[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9_])?"
_NAME = re.compile(
    rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[\w][\w./-]{{0,199}}))?(?::(?P<file>[\w][\w./+ -]{{0,199}}))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class HubName:
    """`revision`: a branch, a tag or a commit, None for `main`.

    `file`: a GGUF file of the repository, or the end of its name, as `Q4_K_M`; None where there is nothing to choose.
    """

    repo: str
    revision: str | None = None
    file: str | None = None

    @property
    def folder_name(self) -> str:
        """The repository's folder in the cache."""
        return "models--" + self.repo.replace("/", "--")

    @property
    def to_fetch(self) -> str:
        """What to type so that the model is there, the extra that it takes included."""
        word = shlex.quote(str(self))
        return f"asyncpage fetch {word}" if has_extra() else f"{INSTALL}, then: asyncpage fetch {word}"

    def __str__(self) -> str:
        revision = "" if self.revision is None else f"@{self.revision}"
        return self.repo + revision + ("" if self.file is None else f":{self.file}")


def parse_hub_name(word: str) -> HubName | None:
    """The name that `word` is; None when it cannot be one, as a path to a GGUF file or a path of three parts."""
    match = _NAME.fullmatch(word)
    if match is None or match["repo"].endswith(".gguf"):
        return None
    parts = [*(match["revision"] or "").split("/"), *(match["file"] or "").split("/")]
    if ".." in parts or "." in parts or "--" in match["repo"]:  # "--" stands for the slash in the cache
        return None
    return HubName(match["repo"], match["revision"], match["file"])


def has_extra() -> bool:
    """Whether the library is installed that models are fetched with."""
    return find_spec("huggingface_hub") is not None

"""The hub over HTTP: what a repository holds, and a file's bytes from some place on.

The fetch asks it. The one owner of the `huggingface_hub` library, which knows where the hub is (`HF_ENDPOINT`), who
asks (`HF_TOKEN`) and whether it may be asked (`HF_HUB_OFFLINE`). Files come by plain HTTP: a library's own download
begins a file anew after an interruption, a range does not.

INVARIANT: no text that it raises holds the token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpage
from asyncpage.errors import ModelError, UsageError
from asyncpage.hub.cache import COMMIT
from asyncpage.hub.listing import HubFile, Listing
from asyncpage.hub.name import INSTALL, MAIN, HubName, has_extra

_AGENT = {"library_name": "asyncpage", "library_version": asyncpage.__version__}
_TIMEOUT_S = 20.0  # without a byte
_PASSING = {408, 425, 429}  # and all of the 500s


class Interrupted(Exception):
    """The hub was not reached, or broke off; the same may go well again. Its text says what was found."""


class Connection:
    """To the hub at `endpoint`, None for the one that the environment names.

    Errors of every method: `Interrupted`; `ModelError` and `UsageError` for what stays so, in one line.
    """

    def __init__(self, name: HubName, endpoint: str | None = None, timeout_s: float = _TIMEOUT_S) -> None:
        if not has_extra():
            raise UsageError(f"downloading {name} needs a library; type: {INSTALL}, then: asyncpage fetch {name}")
        from huggingface_hub import HfApi, constants
        from huggingface_hub.utils import logging

        constants.HF_HUB_DISABLE_TELEMETRY = True  # the hub is told and asked what the user asks for, and no more
        logging.set_verbosity_error()  # what there is to say is said here, in one line
        self._name = name
        self._timeout_s = timeout_s
        self._api = HfApi(endpoint=endpoint, **_AGENT)

    def listing(self) -> Listing:
        """The files of the repository at the commit that its revision means now."""
        try:
            with self._answers():
                info = self._api.model_info(
                    self._name.repo, revision=self._name.revision or MAIN, files_metadata=True, timeout=self._timeout_s
                )
            commit, files = str(info.sha), {file.rfilename: _checkable(file) for file in info.siblings or ()}
        except (ValueError, LookupError, TypeError) as error:  # not JSON, or without what the library takes out of it
            raise ModelError(
                f"{self._api.endpoint} does not answer as a hub does ({type(error).__name__}: {str(error)[:200]}); "
                "check HF_ENDPOINT"
            ) from None
        if not COMMIT.fullmatch(commit):
            raise ModelError(f"{self._api.endpoint} names no commit of {self._name}; check HF_ENDPOINT")
        return Listing(commit, files)

    @contextmanager
    def body(self, file: str, commit: str, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Bytes of a file, and where in it they begin: at `start`, or at 0 where the hub gives no ranges."""
        from huggingface_hub import get_session, hf_hub_url, hf_raise_for_status
        from huggingface_hub.utils import build_hf_headers

        url = hf_hub_url(self._name.repo, file, revision=commit, endpoint=self._api.endpoint)
        # Compressed on the way, a range would count other bytes.
        headers = {**build_hf_headers(**_AGENT), "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        with (
            self._answers(),
            get_session().stream("GET", url, headers=headers, timeout=self._timeout_s) as response,
        ):
            if response.status_code == 416:
                raise Interrupted(f"there are no bytes of {file} behind {start}")
            hf_raise_for_status(response)
            begins = start if response.status_code == 206 else 0
            told = response.headers.get("Content-Range", "")
            if begins and not told.startswith(f"bytes {start}-"):
                raise ModelError(f"{self._api.endpoint} was asked for bytes {start}- of {file} and sent {told!r}")
            yield begins, response.iter_bytes()

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """Turn what the library raises into what this class does."""
        from httpx2 import HTTPError, InvalidURL
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

        try:
            yield
        except OfflineModeIsEnabled:
            raise UsageError(
                f"{self._name} is not downloaded while HF_HUB_OFFLINE is set; unset it and run it again"
            ) from None
        except HfHubHTTPError as error:
            status = error.response.status_code
            if status in _PASSING or status >= 500:
                raise Interrupted(f"{self._api.endpoint} answered {status}") from None
            raise ModelError(self._refusal(status, error.response.headers.get("X-Error-Code", ""))) from None
        except InvalidURL as error:
            raise UsageError(f"HF_ENDPOINT {self._api.endpoint} is not an address: {error}") from None
        except HTTPError as error:
            raise Interrupted(f"{self._api.endpoint}: {str(error) or type(error).__name__}") from None

    def _refusal(self, status: int, code: str) -> str:
        from huggingface_hub import get_token

        name, page = self._name, f"{self._api.endpoint}/{self._name.repo}"
        token = "the token that was sent may not read it" if get_token() else "no token was sent"
        if code == "RevisionNotFound":
            return f"{name.repo} has no revision {name.revision or MAIN}; see {page}/tree/main"
        if code == "GatedRepo":
            return (
                f"{name.repo} is gated and {token}: agree to its terms at {page}, make a token that may read it, "
                "and run it again with HF_TOKEN set to that token"
            )
        if status in (401, 403):
            return (
                f"{name.repo} was refused ({status}), {token}: it does not exist or is private; check the spelling at "
                f"{page}, and set HF_TOKEN to a token that may read it"
            )
        if status == 404:
            return f"there is no {name} at {self._api.endpoint}; check the spelling at {page}"
        return f"{self._api.endpoint} answered {status} for {name}; try again later, or see {page}"


def _checkable(file: Any) -> HubFile | None:
    """A file of the library's listing, a large one by the hash of its content; None where size or hash is not told."""
    large = file.lfs
    size, digest = (large.size, large.sha256) if large else (file.size, file.blob_id)
    try:
        return HubFile(file.rfilename, size, digest)
    except ValueError:
        return None

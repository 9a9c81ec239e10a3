"""TLS: the certificate and key that the operator names, as what the listening socket needs.

The command line checks them before a model is loaded; the HTTP server listens with them.

INVARIANT: whatever is wrong with the files is told in one line that names the file and the flag, and no question is
asked on the terminal.
"""

from __future__ import annotations

import ssl

from asyncpage.errors import UsageError
from asyncpage.server.config import ServerConfig


def load_tls(config: ServerConfig) -> ssl.SSLContext | None:
    """TLS 1.2 or newer with the configured certificate, None where there is none. Errors: `UsageError`."""
    if config.ssl_certfile is None:
        return None
    _check_readable("--ssl-certfile", config.ssl_certfile)
    key_flag, key_file = "--ssl-certfile", config.ssl_certfile
    if config.ssl_keyfile is not None:
        key_flag, key_file = "--ssl-keyfile", config.ssl_keyfile
        _check_readable(key_flag, key_file)

    def refuse() -> str:
        raise UsageError(
            f"{key_flag} {key_file} is encrypted, and nobody is asked for its password; decrypt it with 'openssl pkey'"
        )

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password=refuse)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(f"the key in {key_file} is not that of the certificate in {config.ssl_certfile}") from None
        raise UsageError(
            f"{config.ssl_certfile} and {key_file} are not a certificate and its key in PEM form "
            f"({error.reason or 'no such block'}); give the chain, your own first, with --ssl-certfile and the key "
            "with --ssl-keyfile"
        ) from None
    return context


def _check_readable(flag: str, file: str) -> None:
    try:
        with open(file, "rb"):
            pass
    except OSError as error:
        raise UsageError(f"{flag} {file} cannot be read: {error.strerror}") from None

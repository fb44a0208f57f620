"""TLS objects for uvloop, which calls their `read`, `write` and `pending` for every message."""

from __future__ import annotations

import ssl
from typing import Any


class DirectSSLObject(ssl.SSLObject):
    """Has the C functions themselves, where its parent has one in Python around each.

    That would be three more calls a message, which is a twentieth of what a small request costs.
    """

    @classmethod
    def _create(cls, *args: Any, **kwargs: Any) -> DirectSSLObject:
        made: DirectSSLObject = super()._create(*args, **kwargs)  # type: ignore[misc]
        inner = made._sslobj  # type: ignore[attr-defined]
        made.__dict__.update(read=inner.read, write=inner.write, pending=inner.pending)
        return made

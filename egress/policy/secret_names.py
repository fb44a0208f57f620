"""Where the proxy finds secrets, and what one and its name may look like: both planes ask here. Pure."""

from __future__ import annotations

import re

# Directories of BOTTLE_HOME, in the order in which a secret is looked for.
FROM_ADMIN = (
    "admin-secrets"  # holds what the database does and nothing else: what has no row there is removed
)
BY_HAND = "secrets"  # operators' own files, which nobody else touches
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")  # it travels in a header

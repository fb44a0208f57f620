"""The directories where the proxy finds secrets, and the grammar of a secret and its name. Pure."""

from __future__ import annotations

import re

# Directories of BOTTLE_HOME, in the order in which a secret is looked for.
FROM_ADMIN = "admin-secrets"  # a copy of the database: a file without a row there is removed
BY_HAND = "secrets"  # operators' own files, which no program changes
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")  # it travels in a header

"""How much one connection keeps in memory while it waits for somebody: the same for all of them.

Counted is what has arrived and was not taken yet, and what was written and was not read yet. The number of a
bottle's connections is bounded, so this is too. What is searched or signed on its way takes more, which is
counted by the request (see state/memory.py).
"""

from __future__ import annotations

_KIB = 1024
READ_BYTES = 64 * _KIB  # at once; less would make large transfers slower
UNREAD_BYTES = 64 * _KIB  # arrived and not taken, before reading stops; a whole head has to fit
UNSENT_BYTES = 64 * _KIB  # written and not sent, before the source is no longer read

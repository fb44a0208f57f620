"""A Dockerfile as an operator should read it: what changes, instruction by instruction, and what is risky.

Pure. The text is an agent's; nothing of it is run. Flags are hints for the eye: their absence proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from botbottle.dockerfiles import MOST_INSTRUCTIONS, BadDockerfile, instructions

from .diffs import Kind, aligned

MOST_CHARACTERS = 2000  # of one instruction
SHOWN_REMOVALS = 5
# Open pages ask for their cards all the time: each text is read once. More than two pages of cards.
_remembered = lru_cache(maxsize=128)

_SHELLS = r"(?:ba|da|z|k)?sh\b|python3?\b|perl\b|node\b"
# What to look for, in which instructions (empty: all), and what it means for the operator.
_NETWORK_SCRIPT = "runs a script straight from the network"
_FLAGS: tuple[tuple[str, str, str], ...] = (
    ("RUN", rf"(?:curl|wget)\b[^\n;&]{{0,300}}\|\s*(?:sudo\s+)?(?:{_SHELLS})", _NETWORK_SCRIPT),
    ("RUN", rf"(?:{_SHELLS})\s+(?:-c\s+)?[\"']?(?:<\(|\$\()\s*(?:curl|wget)", _NETWORK_SCRIPT),
    ("RUN", r"\bcurl\b[^\n;&|]{0,300}\s(?:-k\b|--insecure)", "turns certificate checks off"),
    ("RUN", r"--no-check-certificate|--trusted-host|strict-ssl\s+false|http\.sslVerify\s+false",
     "turns certificate checks off"),
    ("RUN", r"--allow-unauthenticated|--nogpgcheck|--no-gpg-check|trusted=yes",
     "installs packages without a signature"),
    ("RUN", r"--security=insecure", "asks for a privileged build"),
    ("RUN", r"--network=host", "asks for the host's network while building"),
    ("RUN", r"--network=(?!host)", "chooses a network of its own while building"),
    ("RUN", r"--mount=\S{0,200}type=(?:secret|ssh)", "asks for a secret or an SSH agent while building"),
    ("RUN", r"\bchmod\s+(?:[ugoa]{0,4}\+[rwx]{0,3}s|0?[2467][0-7]{3})\b|\bsetcap\b",
     "makes a program that gains rights"),
    ("RUN", r"\bsudoers\b|\bNOPASSWD\b", "gives rights by sudo"),
    ("RUN", r"\b(?:iptables|nft|ip6tables)\b", "touches firewall rules"),
    ("RUN", r"--index-url|--extra-index-url|\bregistry\s*=?\s*https?:", "takes packages from another index"),
    ("RUN", r"\bbase64\s+(?:-d|--decode|-D)\b|\bxxd\s+-r\b", "decodes something that cannot be read here"),
    ("ADD", r"(?:https?|ftp)://|\bgit@|\.git\b", "fetches a file from the network"),
    ("COPY", r"--from=\S{0,200}[/:.]", "copies out of another image"),
    ("USER", r"^\s*(?:root|0)(?::|\s|$)", "switches to root"),
    ("FROM", r"^(?:--\S+\s+)*(?!scratch\b)[^\s:@]+(?:\s|$)|:latest(?:\s|$)",
     "the base image has no fixed version"),
    ("ENV ARG", r"(?i)\b(?:https?|all|no)_proxy\b", "changes how the proxy is found"),
    ("ENV ARG", r"\b(?:SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|NODE_EXTRA_CA_CERTS"
     r"|GIT_SSL_\w{1,20}|NODE_TLS_REJECT_UNAUTHORIZED|PYTHONHTTPSVERIFY)\b",
     "changes which certificates are believed"),
    ("ENV ARG", r"\b(?:LD_PRELOAD|LD_LIBRARY_PATH|PYTHONPATH|NODE_OPTIONS|BASH_ENV|PROMPT_COMMAND)\b",
     "changes which code programs load"),
    ("ENV ARG", r"(?i)\b\w{0,60}(?:token|secret|password|passwd|api_?key|credential)\w{0,60}\s*=",
     "puts a credential into the image"),
    ("ENTRYPOINT CMD SHELL HEALTHCHECK", r".", "decides what runs when the bottle starts"),
    ("VOLUME", r".", "keeps data outside the image"),
    ("ONBUILD", r".", "acts in images built from this one"),
)  # fmt: skip
_RULES = [(frozenset(names.split()), re.compile(pattern), flag) for names, pattern, flag in _FLAGS]
_SEARCHED = 100_000  # characters of one instruction
_FRONTEND = re.compile(r"\s*#\s*syntax\s*=", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Instruction:
    line: int
    name: str
    text: str  # as it is written, continuations and heredocs included
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    kind: Kind
    instruction: Instruction

    @property
    def shown(self) -> str:
        return self.instruction.text[:MOST_CHARACTERS]

    @property
    def hidden(self) -> int:
        return max(0, len(self.instruction.text) - MOST_CHARACTERS)


def instructions_of(text: str) -> list[Instruction]:
    """Raises BadDockerfile."""
    if not text.strip():
        return []
    parsed = list(instructions(text.removeprefix("\ufeff")))
    lines = text.removeprefix("\ufeff").split("\n")
    ends = [following.line - 1 for following in parsed[1:]] + [len(lines)]
    found = []
    for instruction, end in zip(parsed, ends, strict=True):
        written = _trimmed(lines[instruction.line - 1 : end])
        flags = _flags(instruction.name, instruction.rest, written)
        found.append(Instruction(instruction.line, instruction.name, written, flags))
    return found


def changes(before: str, after: str) -> tuple[list[Change], int]:
    """What is added, removed and kept, in order, and how many more. Empty when it cannot be read."""
    try:
        old, new = instructions_of(before), instructions_of(after)
    except BadDockerfile:
        return [], 0
    found, old_at, new_at = [], iter(old), iter(new)
    for kind, _ in aligned([one.text for one in old], [one.text for one in new]):
        was = next(old_at) if kind is not Kind.ADDED else None
        now = next(new_at) if kind is not Kind.REMOVED else was
        if now is not None:
            found.append(Change(kind, now))
    return found[:MOST_INSTRUCTIONS], max(0, len(found) - MOST_INSTRUCTIONS)


@_remembered
def flags_of(text: str) -> tuple[str, ...]:
    """Each risky thing once, with the first line it stands on. Raises BadDockerfile."""
    found: dict[str, int] = {}
    for instruction in instructions_of(text):
        for flag in instruction.flags:
            found.setdefault(flag, instruction.line)
    if any(_FRONTEND.match(line) for line in text.split("\n", 5)[:5]):
        found.setdefault("another program reads the Dockerfile (# syntax=)", 1)
    return tuple(f"line {line}: {flag}" for flag, line in found.items())


@_remembered
def warnings_of(before: str, after: str) -> tuple[str, ...]:
    """What the change takes away, or puts another base under. Empty where there is no Dockerfile yet."""
    try:
        old, new = instructions_of(before), instructions_of(after)
    except BadDockerfile:
        return ()
    if not old:
        return ()
    kinds = aligned([one.text for one in old], [one.text for one in new])
    gone = [text for kind, text in kinds if kind is Kind.REMOVED and not text.upper().startswith("FROM")]
    warnings = list(_moved_bases(_bases(old), _bases(new)))
    if gone:
        shown = "; ".join(f"'{' '.join(text.split())[:80]}'" for text in gone[:SHOWN_REMOVALS])
        more = f" and {len(gone) - SHOWN_REMOVALS} more" if len(gone) > SHOWN_REMOVALS else ""
        warnings.append(f"takes away what the present Dockerfile has: {shown}{more}")
    return tuple(warnings)


def _bases(instructions: list[Instruction]) -> list[str]:
    """The images that stages start from; stages that start from an earlier one are left out."""
    bases: list[str] = []
    stages: set[str] = set()
    for instruction in instructions:
        words = [word for word in instruction.text.split()[1:] if not word.startswith("--")]
        if instruction.name == "FROM" and words:
            if words[0].lower() not in stages:
                bases.append(words[0])
            stages |= {word.lower() for word in words[2:3]}
    return bases


def _moved_bases(old: list[str], new: list[str]) -> Iterator[str]:
    for base in dict.fromkeys(new):
        if base in old:
            continue
        same = next((other for other in old if _name(other) == _name(base)), None)
        if same is not None:
            yield f"another version of the base image: {base}, so far {same}"
        else:
            yield f"another base image: {base}, so far {', '.join(dict.fromkeys(old)) or 'none'}"


def _name(image: str) -> str:
    """Without tag and digest. A colon before a slash is a registry's port."""
    image = image.partition("@")[0]
    head, slash, last = image.rpartition("/")
    return head + slash + last.partition(":")[0]


def _flags(name: str, rest: str, written: str) -> tuple[str, ...]:
    # What follows FROM and USER stands alone; elsewhere heredocs and the lines as written count too.
    searched = rest if name in {"FROM", "USER"} else f"{rest}\n{written}"
    found = {
        flag: None
        for names, pattern, flag in _RULES
        if name in names and pattern.search(searched, 0, _SEARCHED)
    }
    if len(searched) > _SEARCHED:
        found["is too long to be searched whole"] = None
    return tuple(found)


def _trimmed(lines: list[str]) -> str:
    """Without the blank lines and comments that lead to the next instruction."""
    end = len(lines)
    while end > 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return "\n".join(line.removesuffix("\r") for line in lines[:end])

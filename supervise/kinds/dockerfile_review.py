"""Review a Dockerfile for an operator: what changes, instruction by instruction, and what is risky.

Pure. The text is an agent's; nothing of it is run. Flags are hints for the eye: their absence proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import dropwhile

from botbottle.dockerfiles.parse import (
    MOST_INSTRUCTIONS,
    BadDockerfile,
    instructions,
    json_arguments,
    lines_of,
)
from botbottle.dockerfiles.parse import Instruction as Written
from supervise.diffs import Kind, aligned

MOST_CHARACTERS = 2000  # of one instruction
SHOWN_REMOVALS = 5
# Open pages ask for their cards all the time: each text is read once. More than two pages of cards.
_remembered = lru_cache(maxsize=128)

_SHELL = r"(?:(?:ba|da|z|k|a|fi)?sh|python[\d.]*|perl|ruby|php|node)"
_RUNNERS = {"sudo", "doas", "env", "exec", "command", "nohup", "nice", "xargs", "busybox", "su"}
# setuid or setgid, in words or in numbers
_SPECIAL_MODE = r"[\"']?(?:[ugoa+=,rwxXt-]{0,30}[+=][rwxXt]{0,5}s|0{0,4}[2-7][0-7]{3}\b)"
_NETWORK_SCRIPT = "runs a script straight from the network"
_GAINS_RIGHTS = "makes a program that gains rights"
_OTHER_IMAGE = "copies out of another image"
# What to look for, in which instructions, and what it means for the operator.
_FLAGS: tuple[tuple[str, str, str], ...] = (
    ("RUN", rf"\b(?:{_SHELL}|eval|source|\.)\s+(?:-\S{{1,20}}\s+){{0,3}}[\"']?(?:<\(|\$\(|`)\s*(?:curl|wget)",
     _NETWORK_SCRIPT),
    ("RUN", r"\bcurl\b[^\n;&|]{0,300}\s(?:-k\b|--insecure)", "turns certificate checks off"),
    ("RUN", r"--no-check-certificate|--trusted-host|strict-ssl\s+false|http\.sslVerify\s+false",
     "turns certificate checks off"),
    ("RUN", r"--allow-unauthenticated|--nogpgcheck|--no-gpg-check|trusted=yes",
     "installs packages without a signature"),
    ("RUN", r"--security=insecure", "asks for a privileged build"),
    ("RUN", r"--network=host", "asks for the host's network while building"),
    ("RUN", r"--network=(?!host)", "chooses a network of its own while building"),
    ("RUN", r"--mount=\S{0,200}type=(?:secret|ssh)", "asks for a secret or an SSH agent while building"),
    ("RUN", rf"\bchmod\s+(?:-\S{{1,30}}\s+){{0,5}}{_SPECIAL_MODE}|\bsetcap\b", _GAINS_RIGHTS),
    ("COPY ADD", rf"--chmod={_SPECIAL_MODE}", _GAINS_RIGHTS),
    ("RUN", r"--mount=\S{0,200}from=", _OTHER_IMAGE),
    ("RUN", r"\bsudoers\b|\bNOPASSWD\b", "gives rights by sudo"),
    ("RUN", r"\b(?:iptables|nft|ip6tables)\b", "touches firewall rules"),
    ("RUN", r"--index-url|--extra-index-url|\bregistry\s*=?\s*https?:", "takes packages from another index"),
    ("RUN", r"\bbase64\s+(?:-d|--decode|-D)\b|\bxxd\s+-r\b", "decodes something that cannot be read here"),
    ("ADD", r"(?:https?|ftp)://|\bgit@|\.git\b", "fetches a file from the network"),
    ("USER", r"^\s*(?:root|[+-]?0+)(?::|\s|$)", "switches to root"),
    ("USER", r"\$", "names its user by a variable"),
    ("ENV ARG", r"(?i)\b\w{0,60}_proxy\b", "changes how the proxy is found"),
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
_COMMANDS = re.compile(r"[\n;]|&&|\|\|")
_FETCHES = re.compile(r"\b(?:curl|wget)\b")
_A_SHELL = re.compile(_SHELL)
_QUOTED = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
_MAKES_FILES = re.compile(r"\b(?:install|mkdir)\s")
_MODE_OPTION = re.compile(rf"\s(?:-\w{{0,9}}m\s*|--mode[=\s]){_SPECIAL_MODE}")
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
    """The instructions of a Dockerfile, with their flags. Raises BadDockerfile."""
    if not text.strip():
        return []
    parsed, lines, stages = list(instructions(text)), lines_of(text), _Stages()
    ends = [following.line - 1 for following in parsed[1:]] + [len(lines)]
    found = []
    for instruction, end in zip(parsed, ends, strict=True):
        written = _trimmed(lines[instruction.line - 1 : end])
        flags = dict.fromkeys(stages.flags(instruction.name, instruction.rest))
        flags |= dict.fromkeys(_flags(instruction.name, _as_read(instruction), written))
        found.append(Instruction(instruction.line, instruction.name, written, tuple(flags)))
    return found


def _as_read(instruction: Written) -> str:
    """The text to search. A RUN in JSON form counts as a command line too: its quotes would hide it."""
    if instruction.name != "RUN":
        return instruction.rest
    return "\n".join([instruction.rest, " ".join(json_arguments(instruction) or ())])


def changes(before: str, after: str) -> tuple[list[Change], int]:
    """The instructions added, removed and kept, in order, and how many more. Empty if it cannot be parsed."""
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
    """Each flag once, with its first line. Raises BadDockerfile."""
    found: dict[str, int] = {}
    for instruction in instructions_of(text):
        for flag in instruction.flags:
            found.setdefault(flag, instruction.line)
    if any(_FRONTEND.match(line) for line in lines_of(text)[:5]):
        found.setdefault("another program reads the Dockerfile (# syntax=)", 1)
    return tuple(f"line {line}: {flag}" for flag, line in found.items())


@_remembered
def warnings_of(before: str, after: str) -> tuple[str, ...]:
    """Warnings about removed instructions and other base images. Empty where there is no Dockerfile yet."""
    try:
        old, new = instructions_of(before), instructions_of(after)
    except BadDockerfile:
        return ()
    if not old:
        return ()
    kinds = aligned([one.text for one in old], [one.text for one in new])
    # Where there are as many stages as before, one that is gone became another, which is told by its base.
    fewer = _count_of_stages(new) < _count_of_stages(old)
    gone = [
        text
        for kind, text in kinds
        if kind is Kind.REMOVED and (fewer or not text.upper().startswith("FROM"))
    ]
    warnings = list(_moved_bases(_bases(old), _bases(new)))
    if gone:
        shown = "; ".join(f"'{' '.join(text.split())[:80]}'" for text in gone[:SHOWN_REMOVALS])
        more = f" and {len(gone) - SHOWN_REMOVALS} more" if len(gone) > SHOWN_REMOVALS else ""
        warnings.append(f"takes away what the present Dockerfile has: {shown}{more}")
    return tuple(warnings)


def _count_of_stages(instructions: list[Instruction]) -> int:
    return sum(instruction.name == "FROM" for instruction in instructions)


def _bases(instructions: list[Instruction]) -> list[str]:
    """The images that stages start from, without stages that start from an earlier stage."""
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
    """The image's name without tag and digest. A colon before a slash is a registry's port."""
    image = image.partition("@")[0]
    head, slash, last = image.rpartition("/")
    return head + slash + last.partition(":")[0]


class _Stages:
    """The stages seen so far, to tell whether FROM and COPY --from name a stage or an image."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def flags(self, name: str, rest: str) -> Iterator[str]:
        words = _unquoted(rest).split()
        if name == "FROM":
            base, *named = [word for word in words if not word.startswith("--")] or [""]
            if base.lower() not in {"scratch", *self._names} and _is_loose(base):
                yield "the base image has no fixed version"
            self._names.append("".join(named[1:2]).lower())
        if name == "COPY":
            sources = [word.removeprefix("--from=") for word in words if word.startswith("--from=")]
            finished = self._names[:-1]  # the present stage's own name is an image's
            known = {*finished, *map(str, range(len(finished)))}
            if any(source.lower() not in known for source in sources):
                yield _OTHER_IMAGE


def _is_loose(image: str) -> bool:
    tag = image.removeprefix(_name(image))
    return "$" in image or tag in {"", ":latest"}


def _unquoted(text: str) -> str:
    """Drop quotes and escapes, roughly as the engine does when it reads words."""
    return re.sub(r"[\"'\\]", "", text)


def _flags(name: str, rest: str, written: str) -> Iterator[str]:
    # What follows USER stands alone; elsewhere heredocs and the lines as written count too.
    searched = _unquoted(rest) if name == "USER" else f"{rest}\n{written}"
    for names, pattern, flag in _RULES:
        if name in names and pattern.search(searched, 0, _SEARCHED):
            yield flag
    if name == "RUN":
        bounded = searched[:_SEARCHED]
        yield from _flags_of_commands(bounded)
        yield from _flags_of_commands(_QUOTED.sub("''", bounded))  # a quoted ; or | ends no command
    if len(searched) > _SEARCHED:
        yield "is too long to be searched whole"


def _flags_of_commands(text: str) -> Iterator[str]:
    for command in _COMMANDS.split(text):
        first, *piped = command.split("|")
        if piped and _FETCHES.search(command) and _ends_in_a_shell([first, *piped]):
            yield _NETWORK_SCRIPT
        if _MAKES_FILES.search(command) and _MODE_OPTION.search(command):
            yield _GAINS_RIGHTS


def _ends_in_a_shell(pipeline: list[str]) -> bool:
    """Whether something that is fetched ends, at once or later, in a program that runs it."""
    is_fetched = False
    for command in pipeline:
        if is_fetched and _is_shell(command):
            return True
        is_fetched = is_fetched or bool(_FETCHES.search(command))
    return False


def _is_shell(command: str) -> bool:
    words = [word.rpartition("/")[2].strip("\"'(){}&") for word in command.split()[:20]]
    names = list(dropwhile(lambda word: not word or "=" in word, words))
    if names and names[0] in _RUNNERS:
        return any(_A_SHELL.fullmatch(name) for name in names)
    return bool(names and _A_SHELL.fullmatch(names[0]))


def _trimmed(lines: list[str]) -> str:
    """Drop the blank lines and comments that belong to the next instruction."""
    end = len(lines)
    while end > 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return "\n".join(lines[:end])

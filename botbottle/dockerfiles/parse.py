"""Checks that a text parses as a Dockerfile, before a `capability-block` is queued.

Trust boundary: the text was written by an agent. Nothing is run or fetched; only the grammar is checked, as
BuildKit reads it: parser directives, continuations, comments inside them, heredocs, JSON-form arguments.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass


class BadDockerfile(ValueError):
    """The text is refused. `str(error)` is a sentence that names the line."""


@dataclass(frozen=True, slots=True)
class Instruction:
    line: int
    name: str
    rest: str

    def refuse(self, what: str) -> BadDockerfile:
        return BadDockerfile(f"line {self.line}: {self.name} {what}")


# Programs disagree on whether these are white space, and so on where a line or a word ends.
_DISPUTED = re.compile(r"\r(?!\n)|(?![\t\n\r ])[\s\x00-\x1f\x7f-\x9f]")
_DIRECTIVE = re.compile(r"#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(.+)")
_WORD = re.compile(r"""(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+""")
_HEREDOC = re.compile(r"\d*<<(-?)([^<]+)")
_STAGE = re.compile(r"[a-z][a-z0-9_.-]*")
_BYTE_ORDER_MARK = "\ufeff"
_TAKES_HEREDOCS = frozenset({"ADD", "COPY", "RUN"})
# A size that an operator can read, and that a page can show many times.
MOST_BYTES = 64 * 1024
MOST_INSTRUCTIONS = 400


def digest_of(text: str) -> str:
    """The digest that identifies a Dockerfile from its approval to the image that runs."""
    return hashlib.sha256(text.encode()).hexdigest()


def check_dockerfile(text: str) -> None:
    """Raises BadDockerfile, with the line, unless the text is a complete Dockerfile of a readable size."""
    size = len(text.encode(errors="replace"))
    if size > MOST_BYTES:
        raise BadDockerfile(
            f"the Dockerfile has {size} bytes, and at most {MOST_BYTES} are read: keep long files out of it, "
            "in the workspace or in a package"
        )
    disputed = _DISPUTED.search(text)
    if disputed:
        line = text.count("\n", 0, disputed.start()) + 1
        raise BadDockerfile(
            f"line {line}: there is the character U+{ord(disputed.group()):04X}, a control character or an "
            "unusual space. Use plain spaces, tabs and line ends"
        )
    if not text.removeprefix(_BYTE_ORDER_MARK).strip():
        raise BadDockerfile("the Dockerfile is empty: it must start with FROM, such as 'FROM debian:12'")
    has_stage = False
    for count, instruction in enumerate(instructions(text), 1):
        if count > MOST_INSTRUCTIONS:
            raise instruction.refuse(
                f"is one instruction more than the {MOST_INSTRUCTIONS} that are read: join some with '&&'"
            )
        if not has_stage and instruction.name not in {"FROM", "ARG"}:
            raise instruction.refuse("comes before FROM; only ARG may")
        has_stage = has_stage or instruction.name == "FROM"
    if not has_stage:
        raise BadDockerfile("the Dockerfile has no FROM: it must start with one, such as 'FROM debian:12'")


def lines_of(text: str) -> list[str]:
    """The lines as they are counted, without the marks that editors put at the start and the line ends."""
    return [line.removesuffix("\r") for line in text.removeprefix(_BYTE_ORDER_MARK).split("\n")]


def instructions(text: str) -> Iterator[Instruction]:
    """Yield each instruction whole and checked; skips comments, blank lines and heredoc bodies."""
    lines = lines_of(text)
    continued = _continuation(_escape_character(lines))
    number = 0
    while number < len(lines):
        start = number + 1
        logical, number = _logical_line(lines, number, continued)
        if not logical:
            continue
        name, *rest = logical.split(maxsplit=1)
        instruction = Instruction(start, name.upper(), rest[0] if rest else "")
        _check(instruction)
        for ending, strip_tabs in heredocs(instruction):
            number = _after_heredoc(lines, number, ending, strip_tabs)
            if number > len(lines):
                raise instruction.refuse(
                    f"opens a heredoc that is never closed: a line with {ending!r} is missing"
                )
        yield instruction


def _escape_character(lines: list[str]) -> str:
    """The escape character. Directives stand at the top, before any comment or instruction."""
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        match = _DIRECTIVE.fullmatch(line.strip())
        name = match.group(1).lower() if match else ""
        if match is None or name not in {"syntax", "escape", "check"}:
            break
        if name in found:
            raise BadDockerfile(f"line {number}: the directive {name!r} stands twice")
        found[name] = match.group(2)
        if name == "escape" and found[name] not in {"\\", "`"}:
            raise BadDockerfile(f"line {number}: the escape character must be \\ or `")
    return found.get("escape", "\\")


def _continuation(escape: str) -> re.Pattern[str]:
    """Whether a line continues: it ends with an escape character that is not itself escaped."""
    character = re.escape(escape)
    return re.compile(rf"(?<!{character}){character}[ \t]*$")


def _logical_line(lines: list[str], number: int, continued: re.Pattern[str]) -> tuple[str, int]:
    """The instruction that starts here, with its continuations, or nothing; and the next line's index."""
    parts: list[str] = []
    while number < len(lines):
        line = lines[number]
        number += 1
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            if parts:
                continue
            break
        part = continued.sub("", line)
        parts.append(part)
        if part == line:
            break
    return "".join(parts).strip(), number


def heredocs(instruction: Instruction) -> Iterator[tuple[str, bool]]:
    """The delimiters to look for, in order, and whether tabs before them are stripped."""
    name, rest = instruction.name, instruction.rest
    if name == "ONBUILD":
        name, _, rest = rest.partition(" ")
    if name.upper() not in _TAKES_HEREDOCS or json_arguments(instruction) is not None:
        return
    for word in _WORD.findall(rest):
        match = _HEREDOC.fullmatch(word)
        ending = re.sub(r"[\"'\\]", "", match.group(2)) if match else ""
        if match and ending:
            yield ending, bool(match.group(1))


def _after_heredoc(lines: list[str], number: int, ending: str, strip_tabs: bool) -> int:
    """The index of the line after the delimiter; beyond the last line when there is none."""
    while number < len(lines):
        line = lines[number].lstrip("\t") if strip_tabs else lines[number]
        number += 1
        if line == ending:
            return number
    return len(lines) + 1


def _check(instruction: Instruction) -> None:
    check = _CHECKS.get(instruction.name)
    if check is None:
        raise BadDockerfile(f"line {instruction.line}: unknown instruction {instruction.name[:40]!a}")
    if not instruction.rest:
        raise instruction.refuse("has no arguments")
    check(instruction)


def json_arguments(instruction: Instruction) -> list[str] | None:
    """The arguments in JSON form, or None when they are a shell's, as in `[ -f x ] && …`."""
    text = " ".join(_without_flags(instruction.rest))
    if not text.startswith("["):
        return None
    try:
        array = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(entry, str) for entry in array):
        raise instruction.refuse("takes only text in its JSON list")
    return list(array)


def _without_flags(rest: str) -> list[str]:
    words = rest.split()
    while words and words[0].startswith("--"):
        words.pop(0)
    return words


def _check_any(instruction: Instruction) -> None:
    """Check arguments in shell or JSON form."""
    array = json_arguments(instruction)
    if array is None and not _without_flags(instruction.rest):
        raise instruction.refuse("has flags but no arguments")
    if array == [] and instruction.name not in {"CMD", "ENTRYPOINT"}:
        raise instruction.refuse("has an empty list of arguments")


def _check_text(instruction: Instruction) -> None:
    """Check that there is text; all of it is one argument."""


def _check_from(instruction: Instruction) -> None:
    words = _without_flags(instruction.rest)
    if len(words) not in {1, 3} or (len(words) == 3 and words[1].upper() != "AS"):
        raise instruction.refuse("must read 'FROM image' or 'FROM image AS name'")
    if len(words) == 3 and not _STAGE.fullmatch(words[2].lower()):
        raise instruction.refuse(f"has a bad stage name {words[2][:40]!a}: use letters, digits and '_.-'")


def _check_copy(instruction: Instruction) -> None:
    array = json_arguments(instruction)
    words = _without_flags(instruction.rest) if array is None else array
    if len(words) < 2:
        raise instruction.refuse("needs a source and a destination")


def _check_pairs(instruction: Instruction) -> None:
    """Check `name=value …`, or the old `name value`."""
    words = _WORD.findall(instruction.rest)
    first = words[0] if words else ""
    if "=" not in first and len(words) < 2:
        raise instruction.refuse("must read 'name=value'")
    if "=" in first:
        for word in words:
            if word.startswith("=") or "=" not in word:
                raise instruction.refuse(f"has {word[:40]!a} where 'name=value' should be")


def _check_arg(instruction: Instruction) -> None:
    if any(word.startswith("=") for word in _WORD.findall(instruction.rest)):
        raise instruction.refuse("must read 'name' or 'name=default'")


def _check_shell(instruction: Instruction) -> None:
    if not json_arguments(instruction):
        raise instruction.refuse("""needs its arguments in JSON form, such as ["/bin/bash", "-c"]""")


def _check_healthcheck(instruction: Instruction) -> None:
    words = _without_flags(instruction.rest)
    kind = words[0].upper() if words else ""
    if not (kind == "NONE" and len(words) == 1) and not (kind == "CMD" and len(words) > 1):
        raise instruction.refuse("must read 'HEALTHCHECK NONE' or 'HEALTHCHECK CMD command'")


def _check_onbuild(instruction: Instruction) -> None:
    name, *rest = instruction.rest.split(maxsplit=1)
    if name.upper() in {"ONBUILD", "FROM", "MAINTAINER"}:
        raise instruction.refuse(f"cannot hold {name.upper()}")
    _check(Instruction(instruction.line, name.upper(), rest[0] if rest else ""))


_CHECKS: dict[str, Callable[[Instruction], None]] = {
    "ADD": _check_copy,
    "ARG": _check_arg,
    "CMD": _check_any,
    "COPY": _check_copy,
    "ENTRYPOINT": _check_any,
    "ENV": _check_pairs,
    "EXPOSE": _check_text,
    "FROM": _check_from,
    "HEALTHCHECK": _check_healthcheck,
    "LABEL": _check_pairs,
    "MAINTAINER": _check_text,
    "ONBUILD": _check_onbuild,
    "RUN": _check_any,
    "SHELL": _check_shell,
    "STOPSIGNAL": _check_text,
    "USER": _check_text,
    "VOLUME": _check_any,
    "WORKDIR": _check_text,
}

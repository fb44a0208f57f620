"""Decides which Dockerfiles of agents are given to the Docker engine, and in which form. Pure.

Trust boundary: the text is an agent's. Refused is everything that the engine itself would fetch over the
host's network, that no bound of a build covers, or that engines read in different ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from botbottle.dockerfiles.parse import BadDockerfile, Instruction, check_dockerfile, instructions, lines_of

_REFUSED = {
    "ADD": "which fetches past the proxy. Use RUN",
    "ONBUILD": "which acts in later builds, past the proxy. Use RUN",
    "VOLUME": "whose files are not counted while the image is built. Leave it out",
}
# The engine removes quotes and escapes from a flag; a flag in this form has none.
_FLAG = re.compile(r"--([a-z-]+)=([A-Za-z0-9][A-Za-z0-9_.:@/-]*)")
_FLAGS = {
    "COPY": {"from", "chown"},
    "HEALTHCHECK": {"interval", "timeout", "start-period", "start-interval", "retries"},
}
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@/-]*")
_HEREDOC = re.compile(r"(?<!<)<<(?!<)")
_ESCAPE = re.compile(r"\s*#\s*(escape|check)\s*=", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Needed:
    """An image that the engine must have, since it would fetch it otherwise."""

    line: int
    name: str
    is_base: bool  # steps run in it; else files are copied out of it


def check_rebuildable(text: str) -> None:
    """Raises BadDockerfile, with the line, for a text that cannot be built with any images."""
    needed_images(text)


def needed_images(text: str) -> list[Needed]:
    """The images that a build starts from and copies from. Raises BadDockerfile like check_rebuildable."""
    check_dockerfile(text)
    for number, line in enumerate(lines_of(text), 1):
        directive = _ESCAPE.match(line)
        if directive:  # engines differ in where they stop honouring it
            raise BadDockerfile(
                f"line {number}: a rebuild takes no '# {directive[1].lower()}='. Leave it out"
            )
    read = list(instructions(text))
    for instruction in read:
        _refuse(instruction)
    return list(_needed(read))


def named_images(text: str) -> list[str]:
    """The image names in an operator's own text, which may contain more than agents' texts. Each once."""
    try:
        read = list(instructions(text))
    except BadDockerfile:
        return []
    return list(dict.fromkeys(each.name for each in _needed(read) if _IMAGE.fullmatch(each.name)))


def one_line_each(text: str) -> str:
    """The same instructions, each on one line where it starts, and nothing else.

    Engines cannot disagree with us about comments, continuations and directives that they never see.
    """
    lines = [""] * len(lines_of(text))
    for instruction in instructions(text):
        lines[instruction.line - 1] = f"{instruction.name} {instruction.rest}"
    return "\n".join(lines)


def _refuse(instruction: Instruction) -> None:
    name, where = instruction.name, f"line {instruction.line}: a rebuild takes no"
    if name in _REFUSED:
        raise BadDockerfile(f"{where} {name}, {_REFUSED[name]}")
    # An engine that does not know heredocs would run their lines as instructions.
    if name in {"RUN", "COPY"} and _HEREDOC.search(instruction.rest):
        raise BadDockerfile(f"{where} heredocs (<<). Join commands with && and write files with printf")
    for flag in _flags(instruction):
        match = _FLAG.fullmatch(flag)
        if match is None or match[1] not in _FLAGS.get(name, ()):
            raise BadDockerfile(f"{where} {flag[:40]!a} for {name}. {_instead(name)}")
    if instruction.rest.endswith("\\"):
        raise instruction.refuse("ends in a backslash with nothing behind it")
    if name == "FROM" and not _IMAGE.fullmatch(_image_of(instruction)):
        raise instruction.refuse("must name an image by its plain name, without quotes and variables")


def _instead(name: str) -> str:
    if name == "FROM":
        return "Name a local image"
    known = " and ".join(f"--{flag}=" for flag in sorted(_FLAGS.get(name, ())))
    return f"It takes {known} with a plain value" if known else "It takes no flags"


def _flags(instruction: Instruction) -> Iterator[str]:
    """The words in which the engine looks for flags: it stops at the first that is not a flag."""
    for word in instruction.rest.split():
        if not word.startswith("--"):
            return
        yield word


def _image_of(instruction: Instruction) -> str:
    return instruction.rest.split()[0]


def _needed(read: list[Instruction]) -> Iterator[Needed]:
    """The image that an instruction names. A stage's name can be used once the next stage has begun."""
    finished: list[str] = []
    present: str | None = None
    for instruction in read:
        if instruction.name == "FROM":
            finished += [] if present is None else [present]
            base, *name = [word for word in instruction.rest.split() if not word.startswith("--")]
            present = "".join(name[1:]).lower()
            if base != "scratch" and base.lower() not in finished:
                yield Needed(instruction.line, base, is_base=True)
        for source in _sources(instruction):
            numbers = map(str, range(len(finished)))
            if source.lower() not in finished and source not in numbers:
                yield Needed(instruction.line, source, is_base=False)


def _sources(instruction: Instruction) -> Iterator[str]:
    for flag in _flags(instruction):
        name, _, value = flag.partition("=")
        if name == "--from":
            yield value

"""The findings of a search for secrets, which never contain the value itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass

PROVISIONED = "provisioned-secret"


@dataclass(frozen=True, slots=True)
class Finding:
    """A secret that was found. `kind` is `provisioned-secret` or a key of SHAPES; `where` is url, header,
    body or trailer.

    `file` names the file or other part of a container that it is in, if that is known.
    """

    kind: str
    where: str
    file: str = ""


class Found(Exception):
    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.kind} in {finding.where}")
        self.finding = finding

"""The output of `manage.py bottle`. Text from inside a bottle is made safe for a terminal."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from django.conf import settings
from django.utils import timezone
from django.utils.timesince import timesince

from botbottle.core.sanitize import make_visible, one_line
from botbottle.models import Bottle
from botbottle.web import listeners
from supervise.bottles.records import Credentials

# Colours and cursor moves (CSI), titles and links (OSC and similar), and short escapes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_LINE_MOST = 64 * 1024


class Plain:
    """Bytes from inside a bottle as lines of text that are safe for a terminal."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, chunk: bytes) -> bytes:
        text = self._rest + self._decoder.decode(chunk)
        head, newline, self._rest = text.rpartition("\n")
        if len(self._rest) > _LINE_MOST:
            head, newline, self._rest = text, "", ""
        return _plain(head + newline)

    def end(self) -> bytes:
        return _plain(self._rest + "\n") if self._rest else b""


def plain(chunks: Iterable[bytes]) -> Iterator[bytes]:
    lines = Plain()
    for chunk in chunks:
        yield lines.feed(chunk)
    yield lines.end()


def _plain(text: str) -> bytes:
    lines = _ESCAPES.sub("", text.replace("\r\n", "\n")).split("\n")
    # After a carriage return only the last text shows, as with a progress bar.
    return "\n".join(make_visible(line.rstrip("\r").rpartition("\r")[2]) for line in lines).encode()


def row(bottle: Bottle) -> dict[str, Any]:
    return {
        "slug": bottle.slug,
        "backend": bottle.backend,
        "state": bottle.state,
        "started_at": bottle.started_at,
        "exit_code": bottle.exit_code,
        "image": bottle.image,
        "problem": bottle.problem,
        "backend_problem": bottle.backend_problem,
    }


def connection(credentials: Credentials) -> dict[str, str]:
    slug, token = credentials.bottle.slug, credentials.token
    host = next(iter(settings.SUPERVISE_HOSTS), settings.SUPERVISE_BIND)
    return {
        "slug": slug,
        "token": token,
        "mcp_url": f"{listeners.url(host, _agent_port())}/mcp",
        "proxy_url": f"http://{slug}:{token}@{settings.EGRESS_BIND}:{_proxy_port()}",
    }


def _agent_port() -> int:
    """The port that a running server published, else the configured one."""
    return _published(".http.port", "agent") or int(settings.SUPERVISE_PORT)


def _proxy_port() -> int:
    return _published("run/egress.json", "port") or int(settings.EGRESS_PORT)


def _published(file: str, key: str) -> int | None:
    try:
        return int(json.loads((settings.BOTTLE_HOME / file).read_text())[key])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _show_connection(result: dict[str, str]) -> str:
    return (
        f"bottle   {result['slug']}\n"
        f"token    {result['token']}   (shown only now)\n"
        f"MCP      {result['mcp_url']}\n"
        f"proxy    {result['proxy_url']}"
    )


def _show_state(result: dict[str, Any]) -> str:
    return f"{result['slug']} is {result['state']}{_more(result)}"


def _show_ps(result: list[dict[str, Any]]) -> str:
    if not result:
        return "No bottles yet. Begin with: manage.py bottle init SLUG"
    return "\n".join(
        f"{line['slug']:24}  {line['backend']:13} {line['state']}{_more(line)}".rstrip() for line in result
    )


def _more(line: Mapping[str, Any]) -> str:
    """Details of the state: since when, the exit code, problems."""
    said = []
    if line["state"] == Bottle.State.RUNNING and line["started_at"]:
        said.append(f"for {timesince(line['started_at'], timezone.now(), depth=1)}".replace("\xa0", " "))
    if line["state"] == Bottle.State.STOPPED and line["exit_code"] is not None:
        said.append(f"exit code {line['exit_code']}")
    said += [one_line(line[key], 300) for key in ("problem", "backend_problem") if line[key]]
    return f"  ({'; '.join(said)})" if said else ""


def _show_list(result: list[dict[str, Any]]) -> str:
    if not result:
        return "No bottles yet. Make one: manage.py bottle create SLUG"
    return "\n".join(f"{line['slug']:40}  {line['backend']:13} {line['state']}" for line in result)


SHOWN: Final[Mapping[str, Callable[[Any], str]]] = {
    "init": lambda result: (
        f"Wrote {result['manifest']}. Edit it, then: manage.py bottle plan {result['slug']}"
    ),
    "plan": lambda result: str(result["text"]),
    "start": _show_state,
    "stop": _show_state,
    "rebuild": lambda result: f"{result['slug']}: {result['phase']}",
    "rollback-image": lambda result: f"{result['slug']}: {result['phase']}",
    "rm": lambda result: f"removed the sandbox of {result['slug']}; its record and workspace stay",
    "ps": _show_ps,
    "create": _show_connection,
    "token": _show_connection,
    "delete": lambda result: f"deleted {result['slug']}; {result['expired']} open proposals expired",
    "list": _show_list,
}

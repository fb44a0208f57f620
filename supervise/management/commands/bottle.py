"""manage.py bottle create|list|token|delete"""

from __future__ import annotations

import json
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from botbottle.models import Bottle
from supervise import bottles
from supervise.cli import OperatorCommand, Verbs, local_author


class Command(OperatorCommand):
    help = "Create, list and delete bottles, and print new tokens."

    def add_own_arguments(self, parser: CommandParser) -> None:
        verbs = Verbs(parser, "create", "list", "token", "delete")
        create = verbs.add("create", "make a bottle and print its token, once")
        create.add_argument("--backend", choices=Bottle.Backend.values, default=Bottle.Backend.LOCAL)
        verbs.add("list", "the bottles there are")
        token = verbs.add("token", "replace the bottle's token and print the new one, once")
        delete = verbs.add("delete", "end the bottle; its history stays")
        for verb in (create, token, delete):
            verb.add_argument("slug")

    def run(self, options: dict[str, Any]) -> Any:
        author = local_author()
        match options["verb"]:
            case "create":
                return _connection(bottles.create(options["slug"], author=author, backend=options["backend"]))
            case "token":
                return _connection(bottles.rotate_token(options["slug"], author=author))
            case "delete":
                return {"slug": options["slug"], "expired": bottles.delete(options["slug"], author=author)}
            case _:
                return [
                    {"slug": bottle.slug, "backend": bottle.backend, "state": bottle.state}
                    for bottle in bottles.living()
                ]

    def show(self, options: dict[str, Any], result: Any) -> None:
        match options["verb"]:
            case "create" | "token":
                self.stdout.write(
                    f"bottle   {result['slug']}\n"
                    f"token    {result['token']}   (shown only now)\n"
                    f"MCP      {result['mcp_url']}\n"
                    f"proxy    {result['proxy_url']}"
                )
            case "delete":
                self.stdout.write(f"deleted {result['slug']}; {result['expired']} open proposals expired")
            case _:
                for row in result:
                    self.stdout.write(f"{row['slug']:40}  {row['backend']:13} {row['state']}")
                if not result:
                    self.stdout.write("No bottles yet. Make one: manage.py bottle create SLUG")


def _connection(credentials: bottles.Credentials) -> dict[str, str]:
    slug, token = credentials.bottle.slug, credentials.token
    host = settings.SUPERVISE_BIND
    return {
        "slug": slug,
        "token": token,
        "mcp_url": f"http://{host}:{_agent_port()}/mcp",
        "proxy_url": f"http://{slug}:{token}@{settings.EGRESS_BIND}:{_proxy_port()}",
    }


def _agent_port() -> int:
    """The port a running server published, else the configured one."""
    return _published(".http.port", "agent") or int(settings.SUPERVISE_PORT)


def _proxy_port() -> int:
    return _published("run/egress.json", "port") or int(settings.EGRESS_PORT)


def _published(file: str, key: str) -> int | None:
    try:
        return int(json.loads((settings.BOTTLE_HOME / file).read_text())[key])
    except (OSError, ValueError, KeyError, TypeError):
        return None

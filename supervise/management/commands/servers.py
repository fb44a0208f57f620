"""manage.py servers: the MCP servers of a bottle. Their output is shown, never trusted."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from botbottle.core.sanitize import one_line
from supervise.bottles import mcp_servers
from supervise.bottles import records as bottles
from supervise.cli.base import OperatorCommand, Verbs, local_author
from supervise.models import ManagedServer

VERBS = {
    "list": "how they fare",
    "stop": "end one; the others and the bottle go on",
    "start": "start one that was stopped",
    "restart": "end one and start it again, with its files staged again",
    "connect": "speak with one over standard input and output, as a client that only starts programs does",
}


class Command(OperatorCommand):
    help = "Show a bottle's MCP servers; stop, start and restart them; connect to one."

    def add_own_arguments(self, parser: CommandParser) -> None:
        verbs = Verbs(parser, *VERBS)
        for name, text in VERBS.items():
            verb = verbs.add(name, text)
            verb.add_argument("slug")
            if name != "list":
                verb.add_argument("name")

    def run(self, options: dict[str, Any]) -> list[dict[str, Any]]:
        bottle = bottles.get(options["slug"])
        if options["verb"] == "connect":
            mcp_servers.connect(bottle, options["name"])
            raise SystemExit(0)  # standard output carried the protocol, so nothing else may follow
        if options["verb"] == "list":
            mcp_servers.sync(bottle)
        else:
            mcp_servers.act(options["verb"], bottle.slug, options["name"], author=local_author())
        return [_line(server) for server in bottle.managed_servers.all()]

    def show(self, options: dict[str, Any], result: list[dict[str, Any]]) -> None:
        for line in result:
            wrong = f"  {line['phase']}: {one_line(line['problem'], 200)}" if line["phase"] else ""
            limits = f"  limits: {line['limits']}" if line["limits"] else ""
            self.stdout.write(f"{line['name']}  {line['status']}{limits}{wrong}")
        if not result:
            self.stdout.write("This bottle's manifest names no MCP servers.")


def _line(server: ManagedServer) -> dict[str, Any]:
    return {
        "name": server.name,
        "status": server.condition,
        "phase": server.phase,
        "problem": server.problem,
        "exit_code": server.exit_code,
        "restarts": server.restarts,
        "dropped_lines": server.dropped_lines,
        "env": server.env_names,
        "limits": server.limits,
        "stderr": server.stderr,
    }

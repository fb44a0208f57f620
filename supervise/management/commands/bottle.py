"""manage.py bottle: creates, starts, uses and ends bottles. What runs inside is shown, never trusted."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandParser

from botbottle.core import sanitize
from botbottle.launch import plan_cache
from botbottle.launch import start as launch
from botbottle.launch.describe import describe
from botbottle.models import Bottle
from supervise.bottles import lifecycle, rebuild
from supervise.bottles import records as bottles
from supervise.cli import bottle_output
from supervise.cli.base import OperatorCommand, Verbs, named_user
from supervise.disk import notice
from supervise.models import Rebuild

VERBS = {
    "init": "write a commented manifest to begin with",
    "plan": "show what would be started, and what the agent will see",
    "run": "start it on this terminal; ends with the agent's exit code",
    "start": "start it in the background",
    "stop": "end it: ask, wait, then kill",
    "exec": "run one more command in it",
    "attach": "this terminal on its main command; Ctrl-P Ctrl-Q leaves it running",
    "logs": "what its main command printed",
    "ps": "the bottles and whether they run",
    "rebuild": "build the approved Dockerfile in force again, and continue with the new image",
    "rollback-image": "go back to the previous image",
    "rm": "stop it and remove what is left of the sandbox; record and workspace stay",
    "create": "create a bottle without a sandbox and print its token, once",
    "list": "the bottles there are",
    "token": "replace the bottle's token and print the new one, once",
    "delete": "end the bottle for good; its history stays",
}
TAKE_COMMAND = ("run", "start", "exec", "plan")


class Command(OperatorCommand):
    help = "Make, start, use and end bottles."
    _command: tuple[str, ...] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Split off what follows `--`: it is the bottle's command, with all its own options."""
        verb = next((word for word in argv[2:] if not word.startswith("-")), "")
        if "--" in argv and verb in TAKE_COMMAND:
            end = argv.index("--")
            argv, self._command = argv[:end], tuple(argv[end + 1 :])
        super().run_from_argv(argv)

    def add_own_arguments(self, parser: CommandParser) -> None:
        verbs = Verbs(parser, *VERBS)
        own = {name: verbs.add(name, text) for name, text in VERBS.items()}
        own["init"].add_argument("slug", nargs="?", default="demo")
        for name in VERBS.keys() - {"init", "ps", "list"}:
            own[name].add_argument("slug")
        for name in TAKE_COMMAND:
            own[name].add_argument(
                "command", nargs="*", metavar="-- COMMAND", help="instead of the manifest's"
            )
        own["run"].add_argument("--rm", action="store_true", help="remove the sandbox's leftovers afterwards")
        own["exec"].add_argument("-t", dest="tty", action="store_true", default=None, help="with a terminal")
        own["exec"].add_argument("-T", dest="tty", action="store_false", help="without one")
        own["logs"].add_argument("-f", "--follow", action="store_true", help="keep printing new output")
        own["logs"].add_argument("--raw", action="store_true", help="with its escape sequences, as printed")
        for name in ("start", "stop"):
            own[name].add_argument("--as", dest="operator", metavar="USERNAME", help="as this operator")
        own["create"].add_argument("--backend", choices=Bottle.Backend.values, default=Bottle.Backend.LOCAL)

    def run(self, options: dict[str, Any]) -> Any:
        act: Callable[[dict[str, Any]], Any] = getattr(self, f"_{options['verb'].replace('-', '_')}")
        return act(options)

    def show(self, options: dict[str, Any], result: Any) -> None:
        printed = bottle_output.SHOWN[options["verb"]](result)
        if printed:
            self.stdout.write(printed)

    # --- One method per subcommand; what it returns is what --json prints

    def _init(self, options: dict[str, Any]) -> Any:
        path = lifecycle.init(options["slug"])
        return {"slug": options["slug"], "manifest": str(path)}

    def _plan(self, options: dict[str, Any]) -> Any:
        manifest, plan = lifecycle.plan(options["slug"], command=self._words(options))
        text = describe(plan, manifest)
        return {"plan": json.loads(plan_cache.to_json(plan)), "text": text}

    def _run(self, options: dict[str, Any]) -> Any:
        try:
            code = lifecycle.run(
                options["slug"],
                author=launch.author(),
                command=self._words(options),
                progress=self._progress,
            )
        finally:
            if options["rm"] and bottles.living().filter(slug=options["slug"]).exists():
                lifecycle.rm(options["slug"], author=launch.author())
        sys.exit(code)

    def _start(self, options: dict[str, Any]) -> Any:
        bottle = lifecycle.start(
            options["slug"],
            author=_author(options),
            command=self._words(options),
            progress=self._progress,
        )
        return bottle_output.row(bottle)

    def _stop(self, options: dict[str, Any]) -> Any:
        return bottle_output.row(lifecycle.stop(options["slug"], author=_author(options)))

    def _exec(self, options: dict[str, Any]) -> Any:
        words = self._words(options)
        if not words:
            raise bottles.BadBottle(f"Give a command: bottle exec {options['slug']} -- COMMAND.")
        tty = launch.has_terminal() if options["tty"] is None else options["tty"]
        sys.exit(lifecycle.exec(options["slug"], words, author=launch.author(), tty=tty))

    def _attach(self, options: dict[str, Any]) -> Any:
        sys.exit(lifecycle.attach(options["slug"], author=launch.author()))

    def _logs(self, options: dict[str, Any]) -> Any:
        pieces = lifecycle.logs(options["slug"], follow=options["follow"])
        if not options["raw"]:
            pieces = bottle_output.plain(pieces)
        if options["json"]:
            texts = codecs.iterdecode(pieces, "utf-8", "replace")
            for text in texts if options["follow"] else ("".join(texts),):
                self.write_json({"slug": options["slug"], "text": text})
            return
        for piece in pieces:
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()

    def _ps(self, options: dict[str, Any]) -> Any:
        for sentence in notice.notice():
            self.stderr.write(sentence)
        return [bottle_output.row(bottle) for bottle in lifecycle.ps()]

    def _rebuild(self, options: dict[str, Any]) -> Any:
        return self._performed(rebuild.renew(options["slug"], author=launch.author()), options)

    def _rollback_image(self, options: dict[str, Any]) -> Any:
        return self._performed(rebuild.roll_back(options["slug"], author=launch.author()), options)

    def _performed(self, queued: Rebuild, options: dict[str, Any]) -> Any:
        rebuild.perform(queued.pk)
        queued.refresh_from_db()
        if queued.phase == queued.Phase.FAILED:
            raise rebuild.NotRebuilt(queued.problem)
        return {"slug": options["slug"], "phase": queued.phase, "problem": queued.problem}

    def _rm(self, options: dict[str, Any]) -> Any:
        return bottle_output.row(lifecycle.rm(options["slug"], author=launch.author()))

    def _create(self, options: dict[str, Any]) -> Any:
        made = bottles.create(options["slug"], author=launch.author(), backend=options["backend"])
        return bottle_output.connection(made)

    def _token(self, options: dict[str, Any]) -> Any:
        return bottle_output.connection(bottles.rotate_token(options["slug"], author=launch.author()))

    def _delete(self, options: dict[str, Any]) -> Any:
        return {"slug": options["slug"], "expired": bottles.delete(options["slug"], author=launch.author())}

    def _list(self, options: dict[str, Any]) -> Any:
        return [
            {"slug": bottle.slug, "backend": bottle.backend, "state": bottle.state}
            for bottle in bottles.living()
        ]

    def _words(self, options: dict[str, Any]) -> tuple[str, ...]:
        return self._command or tuple(options["command"])

    def _progress(self, line: str) -> None:
        self.stderr.write(sanitize.one_line(line, 400))  # a build's output is hostile
        self.stderr.flush()


def _author(options: dict[str, Any]) -> str:
    if options["operator"] is None:
        return launch.author()
    return lifecycle.operator_name(named_user(options["operator"]))

"""manage.py apikey create|list|delete"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from botbottle.core.sanitize import one_line
from supervise.access import api_keys
from supervise.cli.base import OperatorCommand, Verbs, local_author, named_user
from supervise.models import ApiKey


class Command(OperatorCommand):
    help = "Make, list and delete the keys with which scripts and chat bots use the operator API."

    def add_own_arguments(self, parser: CommandParser) -> None:
        verbs = Verbs(parser, "create", "list", "delete")
        create = verbs.add("create", "make a key and print it, once")
        create.add_argument("--user", required=True, help="the operator the key acts as")
        create.add_argument("--name", required=True, help="what the key is for")
        verbs.add("list", "the keys there are, without the keys themselves")
        delete = verbs.add("delete", "make a key stop working")
        delete.add_argument("id", type=int, help="its number in 'list'")

    def run(self, options: dict[str, Any]) -> Any:
        match options["verb"]:
            case "create":
                user, name = named_user(options["user"]), options["name"]
                key = api_keys.create(user, name, author=local_author())
                return {"user": user.get_username(), "name": name, "key": key}
            case "delete":
                return _line(api_keys.delete(options["id"], author=local_author()), options["id"])
            case _:
                return [_line(row, row.pk) for row in ApiKey.objects.select_related("user").order_by("pk")]

    def show(self, options: dict[str, Any], result: Any) -> None:
        match options["verb"]:
            case "create":
                self.stdout.write(f"key      {result['key']}   (shown only now)\nacts as  {result['user']}")
            case "delete":
                self.stdout.write(f"deleted {_words(result)}")
            case _:
                for row in result:
                    self.stdout.write(_words(row))
                if not result:
                    self.stdout.write("No keys yet. Make one with 'apikey create --user NAME --name LABEL'.")


def _line(row: ApiKey, key_id: int) -> dict[str, Any]:
    return {"id": key_id, "user": row.user.get_username(), "name": row.name, "created_at": row.created_at}


def _words(row: dict[str, Any]) -> str:
    return f"{row['id']:>4}  {row['user']:20}  {row['created_at']:%Y-%m-%d}  {one_line(row['name'], 80)}"

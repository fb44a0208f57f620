"""Operators' secrets: encrypted at rest, a private file for the proxy, and shown to nobody again."""

from __future__ import annotations

import errno
import json
import stat
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection, transaction
from django.test import Client

from botbottle.core.environment import BadSetting
from egress import secrets as sealed
from egress.models import Secret
from supervise import background
from supervise.access import secrets
from supervise.models import AuditEvent
from tests.supervise.console.conftest import browser_of
from tests.support.threads import together

pytestmark = pytest.mark.django_db(transaction=True)
CANARY = "canary-41d7c0ffee"
ADD = "/admin/egress/secret/add/"


@pytest.fixture(autouse=True)
def own_home(home: Path) -> None:
    """No test sees another one's key or files."""


def put(value: str = CANARY, name: str = "API_TOKEN") -> Secret:
    return secrets.put(name, value, author="olivia")


def file_of(home: Path, name: str = "API_TOKEN") -> Path:
    return home / "admin-secrets" / name


def may(user: User, *codenames: str) -> Client:
    for codename in codenames:
        user.user_permissions.add(Permission.objects.get(codename=codename))
    return browser_of(User.objects.get(pk=user.pk))


def test_the_value_is_in_its_file_and_nowhere_else(home: Path) -> None:
    put()
    assert file_of(home).read_text() == CANARY
    holding = [path for path in home.rglob("*") if path.is_file() and CANARY in path.read_text()]
    assert holding == [file_of(home)]
    with connection.cursor() as cursor:
        cursor.execute("SELECT sealed FROM egress_secret")
        assert CANARY.encode() not in bytes(cursor.fetchone()[0])


def test_file_directory_and_key_are_private(home: Path) -> None:
    put()
    assert stat.S_IMODE(file_of(home).stat().st_mode) == 0o600
    assert stat.S_IMODE(file_of(home).parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "secrets.key").stat().st_mode) == 0o600


def test_a_new_value_replaces_the_old_one_in_one_step(home: Path) -> None:
    put()
    before = file_of(home).stat().st_ino
    put("canary-2")
    assert Secret.objects.count() == 1
    assert file_of(home).read_text() == "canary-2"
    assert file_of(home).stat().st_ino != before, "a reader sees the old file or the new one, never half"


def test_nothing_is_handed_over_before_the_commit(home: Path) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        put()
        assert not file_of(home).exists()
        raise ZeroDivisionError
    assert not file_of(home).exists()


def test_a_removed_secret_leaves_nothing(home: Path) -> None:
    secrets.remove(put(), author="olivia")
    assert not Secret.objects.exists()
    assert [path.name for path in (home / "admin-secrets").iterdir()] == [".lock"]


def test_both_are_recorded_without_the_value() -> None:
    secrets.remove(put(), author="olivia")
    rows = list(AuditEvent.objects.order_by("seq"))[-2:]
    assert [(row.action, row.actor_name, row.details) for row in rows] == [
        ("secret set", "olivia", {"name": "API_TOKEN"}),
        ("secret removed", "olivia", {"name": "API_TOKEN"}),
    ]


def test_the_last_of_several_writers_agrees_with_the_database(home: Path) -> None:
    together([partial(put, f"canary-{number}") for number in range(8)])
    assert file_of(home).read_text() == sealed._opened(Secret.objects.get())
    assert {path.name for path in (home / "admin-secrets").iterdir()} == {"API_TOKEN", ".lock"}


def test_a_file_that_could_not_be_written_is_written_later(home: Path, caplog: Any) -> None:
    (home / "admin-secrets").write_text("in the way")
    put()
    (home / "admin-secrets").unlink()
    background.run_maintenance()
    assert file_of(home).read_text() == CANARY


# --- what was removed


def test_a_file_that_could_not_be_removed_is_removed_later(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    secret = put()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", read_only)
        secrets.remove(secret, author="olivia")
        assert sealed.write_all_files() == []
    assert file_of(home).exists() and not Secret.objects.exists()
    assert f"{file_of(home)} of a removed secret is still there, and used: Read-only" in caplog.text
    background.run_maintenance()
    assert not file_of(home).exists()


def read_only(path: Path, **_: Any) -> None:
    raise OSError(errno.EROFS, "Read-only file system", str(path))


def test_a_process_that_died_before_it_removed_the_file_leaves_it_to_the_caretaker(home: Path) -> None:
    put()
    put(name="OTHER")
    Secret.objects.filter(name="API_TOKEN").delete()
    background.run_maintenance()
    assert {path.name for path in (home / "admin-secrets").iterdir()} == {"OTHER", ".lock"}


def test_one_that_died_while_it_wrote_leaves_no_secret_behind(home: Path) -> None:
    put()
    file_of(home, ".API_TOKEN.7f3a").write_text(CANARY)
    background.run_maintenance()
    assert {path.name for path in (home / "admin-secrets").iterdir()} == {"API_TOKEN", ".lock"}


def test_a_machine_that_was_away_removes_it_when_it_is_back(
    home: Path, settings: Any, tmp_path: Path
) -> None:
    secret = put()
    (tmp_path / "secrets.key").write_text((home / "secrets.key").read_text())
    settings.BOTTLE_HOME = tmp_path
    sealed.write_all_files()
    settings.BOTTLE_HOME = home
    secrets.remove(secret, author="olivia")
    assert (file_of(home).exists(), file_of(tmp_path).read_text()) == (False, CANARY)
    settings.BOTTLE_HOME = tmp_path
    assert sealed.write_all_files() == []
    assert not file_of(tmp_path).exists()


def test_files_that_were_put_there_by_hand_stay(home: Path) -> None:
    by_hand = [home / "secrets" / name for name in ("API_TOKEN", "ANOTHER")]
    (home / "secrets").mkdir()
    for path in by_hand:
        path.write_text("of the operator")
    secret = put()
    background.run_maintenance()
    secrets.remove(secret, author="olivia")
    background.run_maintenance()
    assert [path.read_text() for path in by_hand] == ["of the operator"] * 2


def test_what_cannot_be_removed_holds_up_nothing_else(home: Path) -> None:
    put()
    file_of(home).unlink()
    file_of(home, "A_FOLDER").mkdir()
    file_of(home, "GONE").write_text(CANARY)
    background.run_maintenance()
    assert file_of(home).read_text() == CANARY
    assert not file_of(home, "GONE").exists()


# --- the other way round


def test_files_are_made_anew_on_a_machine_that_has_only_database_and_key(home: Path) -> None:
    put()
    put("canary-2", "OTHER")
    file_of(home).unlink()
    file_of(home, "OTHER").write_text("older")
    assert sealed.write_all_files() == []
    assert file_of(home).read_text() == CANARY
    assert file_of(home, "OTHER").read_text() == "canary-2"


def test_a_file_that_is_right_is_left_alone(home: Path) -> None:
    put()
    before = file_of(home).stat().st_mtime_ns
    sealed.write_all_files()
    assert file_of(home).stat().st_mtime_ns == before


def test_a_secret_of_another_key_is_reported_and_the_others_go_on(home: Path, root: Client) -> None:
    put()
    (home / "secrets.key").write_text(Fernet.generate_key().decode())
    put("canary-2", "OTHER")
    file_of(home, "OTHER").unlink()
    assert sealed.write_all_files() == ["API_TOKEN"]
    assert file_of(home, "OTHER").exists()
    assert (
        root.get("/admin/egress/secret/").text.count("it was encrypted with another key. Set it again.") == 1
    )


def test_a_damaged_key_says_what_to_do(home: Path) -> None:
    (home / "secrets.key").write_text("junk")
    with pytest.raises(BadSetting, match=r"secrets\.key is damaged\. Put its copy back, or remove it"):
        put()


# --- in the admin


def test_it_is_set_and_replaced_in_the_admin_and_never_shown(home: Path, root: Client) -> None:
    said = [root.post(ADD, {"name": "API_TOKEN", "value": CANARY}, follow=True).text]
    secret = Secret.objects.get()
    assert (secret.updated_by, file_of(home).read_text()) == ("root", CANARY)
    change = f"/admin/egress/secret/{secret.pk}/change/"
    said += [root.get(change).text, root.post(change, {"value": "canary-2"}, follow=True).text]
    assert file_of(home).read_text() == "canary-2"
    own = f"/admin/egress/secret/{secret.pk}"
    for page in ("/admin", "/admin/egress/secret", f"{own}/history", f"{own}/delete", f"{own}/change"):
        said.append(root.get(f"{page}/").text)
    assert not [page for page in said if "canary" in page]
    sealed_text = bytes(Secret.objects.get().sealed).decode()
    assert not [page for page in said if sealed_text in page]
    assert not [entry for entry in LogEntry.objects.all() if "canary" in entry.change_message]


def test_it_is_never_shown_again_when_the_form_is_wrong(root: Client) -> None:
    answer = root.post(ADD, {"name": "not a name", "value": CANARY})
    assert "A secret&#x27;s name is a letter" in answer.text
    assert CANARY not in answer.text
    assert not Secret.objects.exists()


@pytest.mark.parametrize("value", ["", " ", "two\nlines", "tab\there", "é", "\x00", " led", "followed "])
def test_a_value_that_no_header_takes_is_refused(root: Client, value: str) -> None:
    assert root.post(ADD, {"name": "API_TOKEN", "value": value}).status_code == 200
    assert not Secret.objects.exists()


@pytest.mark.parametrize("name", ["../../etc/passwd", ".lock", "a/b", "", "x" * 129, "1st"])
def test_a_name_is_never_a_path(root: Client, name: str) -> None:
    assert root.post(ADD, {"name": name, "value": CANARY}).status_code == 200
    assert not Secret.objects.exists()


def test_its_name_stays(home: Path, root: Client) -> None:
    secret = put()
    root.post(f"/admin/egress/secret/{secret.pk}/change/", {"name": "ANOTHER", "value": "canary-2"})
    assert list(Secret.objects.values_list("name", flat=True)) == ["API_TOKEN"]
    assert not file_of(home, "ANOTHER").exists()


def test_it_is_removed_in_the_admin_one_or_several(home: Path, root: Client) -> None:
    first, *others = (put(name=f"TOKEN_{number}") for number in range(3))
    root.post(f"/admin/egress/secret/{first.pk}/delete/", {"post": "yes"})
    chosen = {"action": "delete_selected", "_selected_action": [key.pk for key in others], "post": "yes"}
    root.post("/admin/egress/secret/", chosen)
    assert not Secret.objects.exists()
    assert [path.name for path in (home / "admin-secrets").iterdir()] == [".lock"]
    removed = AuditEvent.objects.filter(action="secret removed", actor_name="root")
    assert sorted(row.details["name"] for row in removed) == ["TOKEN_0", "TOKEN_1", "TOKEN_2"]


def test_a_viewer_sees_names_and_sets_nothing(home: Path, viewer: User) -> None:
    secret, vera = put(), may(viewer, "view_secret")
    change = f"/admin/egress/secret/{secret.pk}/change/"
    page = vera.get(change)
    assert page.status_code == 200
    assert "API_TOKEN" in page.text and 'name="value"' not in page.text
    for address in (change, ADD, f"/admin/egress/secret/{secret.pk}/delete/"):
        assert vera.post(address, {"name": "X", "value": "canary-2", "post": "yes"}).status_code == 403
    assert file_of(home).read_text() == CANARY


def test_deciding_alone_does_not_give_secrets(home: Path, operator: User) -> None:
    secret, olivia = put(), browser_of(operator)
    for address in ("/admin/egress/secret/", ADD, f"/admin/egress/secret/{secret.pk}/change/"):
        assert olivia.get(address).status_code == 403
        assert olivia.post(address, {"name": "X", "value": "canary-2"}).status_code == 403
    assert file_of(home).read_text() == CANARY


def test_the_audit_chain_holds_no_value_in_any_row(root: Client) -> None:
    root.post(ADD, {"name": "API_TOKEN", "value": CANARY})
    assert AuditEvent.objects.filter(action="secret set").exists()
    assert CANARY not in json.dumps([row.details for row in AuditEvent.objects.all()])

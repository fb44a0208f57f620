"""Where the proxy looks for a secret, and in which order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from egress.proxy.credentials.secrets import Secrets
from tests.support import ROOT

READ = re.compile(r'environment\.\w+\(\s*"([A-Z_]+)"')
SETTINGS = set(READ.findall((ROOT / "botbottle/settings.py").read_text()))


def put(home: Path, directory: str, value: str, *, mode: int = 0o600) -> Path:
    path = home / directory / "API_TOKEN"
    path.parent.mkdir(exist_ok=True)
    path.write_text(value)
    path.chmod(mode)
    return path


def test_the_admin_comes_before_a_file_by_hand_before_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = Secrets(tmp_path)
    assert secrets.lookup("API_TOKEN") is None
    monkeypatch.setenv("API_TOKEN", "variable")
    assert secrets.lookup("API_TOKEN") == "variable"
    by_hand = put(tmp_path, "secrets", "by hand")
    assert secrets.lookup("API_TOKEN") == "by hand"
    from_admin = put(tmp_path, "admin-secrets", "from the admin")
    assert secrets.lookup("API_TOKEN") == "from the admin"
    from_admin.unlink()
    assert secrets.lookup("API_TOKEN") == "by hand"
    by_hand.unlink()
    assert secrets.lookup("API_TOKEN") == "variable"


@pytest.mark.parametrize("directory", ["admin-secrets", "secrets"])
def test_nothing_takes_the_place_of_a_file_that_others_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str
) -> None:
    monkeypatch.setenv("API_TOKEN", "variable")
    put(tmp_path, "secrets", "by hand")
    put(tmp_path, directory, "loose", mode=0o644)
    secrets = Secrets(tmp_path)
    assert secrets.lookup("API_TOKEN") is None
    told = f"The file {directory}/API_TOKEN must be a plain file of this user with mode 0600."
    assert secrets.problem("API_TOKEN") == told


def test_a_removed_secret_is_not_remembered(tmp_path: Path) -> None:
    secrets, path = Secrets(tmp_path), put(tmp_path, "admin-secrets", "canary")
    assert secrets.lookup("API_TOKEN") == "canary"
    path.unlink()
    assert secrets.lookup("API_TOKEN") is None
    assert "canary" not in str(vars(secrets))


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_no_setting_of_our_own_is_lent_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whatever an agent names in its ask, and somebody approves."""
    assert "OIDC_CLIENT_SECRET" in SETTINGS
    monkeypatch.setenv(name, "canary")
    assert Secrets(tmp_path).lookup(name) is None

"""A real bottle is handed a secret that looks like nothing, and tries to send it. Real parts only."""

from __future__ import annotations

import base64
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.bottle_cli import Bottles
from tests.support.requirements import require
from tests.support.site import ADDRESS, HOST, Site
from tests.support.timeouts import wait_until

pytestmark = pytest.mark.process
PYTHON = str(Path(sys.base_prefix) / "bin" / "python3")
MINE, PLAIN, ROTATED = "blue+horses/eat 9 apples", "green horses eat nothing", "red horses eat 7 pears"
UNSEARCHED = "unsearched.example.com"
SLUG = "handed"
MANIFEST = f"""backend: local
env: {{MINE: {{from_env: HOST_MINE}}, PLAIN: {PLAIN}}}
routes:
  - {{host: {HOST}, methods: [POST], pinned_addresses: [{ADDRESS}]}}
  - {{host: {UNSEARCHED}, methods: [POST], dlp: {{out: false}}, pinned_addresses: [127.0.0.3]}}
"""
FORMS = {
    "plain": MINE,
    "URL-encoded": quote(MINE, safe=""),
    "hex": MINE.encode().hex(),
    "base64": base64.b64encode(MINE.encode()).decode(),
}
# In the bottle: posts each word to the host and tells what came of it.
SEND = """
import json, sys, urllib.error, urllib.request
def send(word):
    headers = {"Content-Type": "text/plain"}
    request = urllib.request.Request(f"https://{sys.argv[1]}/in", word.encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return {"status": answer.status}
    except urllib.error.HTTPError as refused:
        return {"status": refused.code, **json.load(refused)}
print(json.dumps([send(word) for word in sys.argv[2:]]))
"""


@pytest.fixture(scope="module")
def site(shared_site: Site) -> Site:
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    shared_site.origins.add(UNSEARCHED, "127.0.0.3", shared_site.authority.context([UNSEARCHED]))
    return shared_site


@pytest.fixture
def bottles(site: Site) -> Iterator[Bottles]:
    bottles = Bottles(site.server)
    bottles.manifest(SLUG, MANIFEST)
    site.origins.forget()
    yield bottles
    bottles.ok("delete", SLUG)
    assert not told(bottles).exists()


def told(bottles: Bottles) -> Path:
    return bottles.server.home / "bottles" / SLUG / "run" / "secret_variables.json"


def start(bottles: Bottles, secret: str) -> None:
    ran = bottles.command("start", SLUG, "--", "sleep", "100000", HOST_MINE=secret)
    assert ran.code == 0, ran.error


def sent(bottles: Bottles, host: str, *words: str) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = json.loads(bottles.ok("exec", SLUG, "--", PYTHON, "-c", SEND, host, *words))
    return said


def test_it_leaves_in_no_common_form_but_where_an_operator_lets_it(site: Site, bottles: Bottles) -> None:
    start(bottles, MINE)
    answers = dict(zip(FORMS, sent(bottles, HOST, *FORMS.values()), strict=True))
    refused = {"status": 403, "reason": "dlp", "kind": "provisioned-secret", "where": "body"}
    assert {form: refused.items() <= answer.items() for form, answer in answers.items()} == dict.fromkeys(
        FORMS, True
    ), answers
    assert site.origins.requests == []
    assert [each["status"] for each in sent(bottles, HOST, PLAIN, "apples")] == [200, 200], "no secrets"
    assert [each["status"] for each in sent(bottles, UNSEARCHED, *FORMS.values())] == [200] * len(FORMS)
    assert [seen.body.decode() for seen in site.origins.requests][2:] == list(FORMS.values())


def test_what_it_was_handed_is_on_the_host_only_and_only_while_it_runs(bottles: Bottles) -> None:
    start(bottles, MINE)
    assert told(bottles).stat().st_mode & 0o777 == 0o600
    look = "cat /proc/self/mountinfo; find / -name 'secret_variables.json*' 2>/dev/null; true"
    seen = bottles.ok("exec", SLUG, "--", "sh", "-c", look)
    assert "/workspace" in seen and "secret_variables.json" not in seen and f"{SLUG}/run" not in seen
    bottles.ok("stop", SLUG)
    assert not told(bottles).exists()


def test_a_new_start_is_searched_for_its_new_secret_only(bottles: Bottles) -> None:
    start(bottles, MINE)
    assert [each["status"] for each in sent(bottles, HOST, MINE, ROTATED)] == [403, 200]
    bottles.ok("stop", SLUG)
    start(bottles, ROTATED)
    assert [each["status"] for each in sent(bottles, HOST, MINE, ROTATED)] == [200, 403]


def test_it_is_so_from_the_first_request_of_a_run_whichever_way_it_starts(bottles: Bottles) -> None:
    """The first run goes the long way, the others the quick one; each with a secret of its own."""
    command = ("run", SLUG, "--", PYTHON, "-c", SEND, HOST)
    for number in range(4):
        secret = f"{number} {MINE}"
        ran = bottles.command(*command, secret, HOST_MINE=secret, PYTHONPROFILEIMPORTTIME="1")
        assert [each["status"] for each in json.loads(ran.output)] == [403], ran.error
        assert ("django.core" in ran.error) is (number == 0)
        assert not told(bottles).exists()


def test_a_bottle_that_ends_by_itself_leaves_nothing(bottles: Bottles) -> None:
    ran = bottles.command("start", SLUG, "--", "sh", "-c", "exec sleep 0.1", HOST_MINE=MINE)
    assert ran.code == 0, ran.error
    wait_until(lambda: bottles.ps(SLUG)["state"] == "stopped", what="its end")
    assert not told(bottles).exists()

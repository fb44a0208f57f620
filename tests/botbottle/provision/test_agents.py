"""Each agent's configuration: ours is in it, and what was there stays."""

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from botbottle.core.plan_types import BackendError
from botbottle.provision import agents
from botbottle.provision.notes import BEGIN, END

URL = "http://127.0.0.1:9100/mcp"
REAL = tuple(kind for kind in agents.KINDS if kind != "none")
KINDS = pytest.mark.parametrize("kind", REAL)
JSON_FILES = {"claude": agents.CLAUDE, "gemini": agents.GEMINI, "opencode": agents.OPENCODE}


def made(kind: str, existing: dict[str, str] | None = None, *, supervise: bool = True) -> dict[str, str]:
    found = agents.files(kind, mcp_url=URL, existing=(existing or {}).get, supervise=supervise)
    files = {file.path: file.content for file in found}
    assert len(files) == len(found)
    assert files.keys() <= set(agents.paths())
    return files


def entry(kind: str, files: dict[str, str]) -> Any:
    match kind:
        case "codex":
            return tomllib.loads(files[agents.CODEX]).get("mcp_servers", {}).get("supervise")
        case "opencode":
            return json.loads(files[agents.OPENCODE]).get("mcp", {}).get("supervise")
        case _:
            return json.loads(files[JSON_FILES[kind]]).get("mcpServers", {}).get("supervise")


ENTRIES = {
    "claude": {"type": "http", "url": URL, "timeout": 600_000},
    "codex": {"url": URL, "tool_timeout_sec": 600},
    "gemini": {"httpUrl": URL, "timeout": 600_000, "trust": True},
    "opencode": {"type": "remote", "url": URL, "enabled": True, "oauth": False, "timeout": 600_000},
}


@KINDS
def test_a_new_home_gets_the_entry_without_a_token(kind: str) -> None:
    files = made(kind)
    assert entry(kind, files) == ENTRIES[kind]
    assert "Authorization" not in "".join(files.values())


@KINDS
def test_doing_it_twice_is_the_same_as_once(kind: str) -> None:
    once = made(kind)
    assert made(kind, once) == once


@KINDS
def test_without_supervision_there_is_no_entry_and_no_word_of_asking(kind: str) -> None:
    files = made(kind, supervise=False)
    assert entry(kind, files) is None
    said = "".join(files.values())
    assert "mcp" not in said.lower()
    assert "egress-block" not in said
    assert "denies by default" in files[agents.NOTES[kind]]


@KINDS
def test_the_note_says_what_to_do_when_refused(kind: str) -> None:
    note = made(kind)[agents.NOTES[kind]]
    for words in ("403", "egress-block", "pipelock-block", "capability-block", "list-egress-routes",
                  "ask.arguments", "/etc/bot-bottle/current-config/routes.yaml", "in a loop"):  # fmt: skip
        assert words in note
    assert len(note) < 2000


def test_an_agent_of_no_kind_gets_nothing() -> None:
    assert made("none") == {}
    assert agents.command("none") == ()


@KINDS
def test_each_kind_has_a_command_of_its_own(kind: str) -> None:
    assert agents.command(kind) == (kind,)


@pytest.mark.parametrize("kind", sorted(JSON_FILES))
def test_keys_that_were_there_stay_and_an_old_entry_is_replaced(kind: str) -> None:
    path = JSON_FILES[kind]
    servers = "mcp" if kind == "opencode" else "mcpServers"
    before = {
        "zeta": [1, {"ü\ud800": None}],
        servers: {"other": {"url": "x"}, "supervise": {"url": "old"}},
        "a": 1.5,
    }
    after = json.loads(made(kind, {path: json.dumps(before)})[path])
    assert after[servers] == {"other": {"url": "x"}, "supervise": ENTRIES[kind]}
    assert {key: after[key] for key in ("zeta", "a")} == {"zeta": [1, {"ü\ud800": None}], "a": 1.5}
    assert list(after)[:3] == list(before)


@pytest.mark.parametrize(
    ("kind", "path", "before", "kept"),
    [
        ("claude", agents.CLAUDE, {"hasCompletedOnboarding": False}, ("hasCompletedOnboarding", False)),
        ("gemini", agents.GEMINI_TRUST, {"/workspace": "DO_NOT_TRUST"}, ("/workspace", "DO_NOT_TRUST")),
        ("gemini", agents.GEMINI, {"privacy": {"usageStatisticsEnabled": True}},
         ("privacy", {"usageStatisticsEnabled": True})),
        ("opencode", agents.OPENCODE, {"autoupdate": "notify"}, ("autoupdate", "notify")),
    ],
)  # fmt: skip
def test_a_default_does_not_change_what_was_chosen(kind: str, path: str, before: Any, kept: Any) -> None:
    key, value = kept
    assert json.loads(made(kind, {path: json.dumps(before)})[path])[key] == value


def test_claude_may_ask_without_asking_its_user_first() -> None:
    before = {"permissions": {"allow": ["Bash(ls)"], "deny": ["WebFetch"]}}
    after = json.loads(made("claude", {agents.CLAUDE_SETTINGS: json.dumps(before)})[agents.CLAUDE_SETTINGS])
    assert after == {"permissions": {"allow": ["Bash(ls)", "mcp__supervise"], "deny": ["WebFetch"]}}


def test_geminis_list_of_allowed_servers_does_not_hide_ours() -> None:
    before = json.dumps({"mcp": {"allowed": ["other"]}})
    assert json.loads(made("gemini", {agents.GEMINI: before})[agents.GEMINI])["mcp"] == {
        "allowed": ["other", "supervise"]
    }


@pytest.mark.parametrize("kind", sorted(JSON_FILES))
@pytest.mark.parametrize(
    "broken",
    [
        "{",
        "[]",
        "null",
        '"x"',
        '{"a": 1} // why\n',
        '{"a": 1,}',
        "[" * 100_000,
        '{"mcpServers": [], "mcp": []}',
    ],
)
def test_a_configuration_that_cannot_be_read_is_refused_not_overwritten(kind: str, broken: str) -> None:
    with pytest.raises(BackendError, match=r"Put it right") as caught:
        made(kind, {JSON_FILES[kind]: broken})
    assert str(caught.value).startswith(JSON_FILES[kind])


def test_opencodes_comments_have_a_place_where_they_are_safe() -> None:
    with pytest.raises(BackendError, match=r"rename it to opencode\.jsonc"):
        made("opencode", {agents.OPENCODE: '{"theme": "x" // mine\n}'})


@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize("empty", ["", " \n"])
def test_an_empty_configuration_is_none(kind: str, empty: str) -> None:
    paths = set(agents.paths()) - set(agents.NOTES.values())
    assert made(kind, dict.fromkeys(paths, empty)) == made(kind)


TOMLS = {
    "top only": 'model = "m" # mine\n',
    "no newline at the end": 'model = "m"',
    "other server": '[mcp_servers.other]\ncommand = "x"\n\n[tui]\na = 1\n',
    "windows lines": 'model = "m"\r\n[tui]\r\na = 1\r\n',
    "blank lines at the end": "a = 1\n\n\n\n",
    "dotted": 'mcp_servers.other.command = "x"\n',
    "array of tables": "[[hooks]]\na = 1\n\n[[hooks]]\na = 2\n",
}


@pytest.mark.parametrize("before", TOMLS.values(), ids=TOMLS)
def test_codex_keeps_its_file_byte_for_byte_before_our_table(before: str) -> None:
    after = made("codex", {agents.CODEX: before})[agents.CODEX]
    assert after.startswith(before)
    parsed = tomllib.loads(after)
    assert parsed["mcp_servers"].pop("supervise") == ENTRIES["codex"]
    was = tomllib.loads(before)
    assert parsed == {"mcp_servers": {}} | was


@pytest.mark.parametrize(
    "header",
    ["[mcp_servers.supervise]", '[ mcp_servers . "supervise" ] # ours', "  [mcp_servers.'supervise']"],
)
def test_codex_has_our_old_table_replaced_wherever_it_stands(header: str) -> None:
    before = (
        f'a = 1\n\n# why\n[x]\nb = 2\n{header}\nurl = "old"\nbearer_token_env_var = "T"\n'
        '[mcp_servers.supervise.http_headers]\nX = "y"\n[mcp_servers.supervise2]\nurl = "z"\n'
        "[y]\n# end\nc = 3\n"
    )
    after = made("codex", {agents.CODEX: before})[agents.CODEX]
    assert after.startswith(
        'a = 1\n\n# why\n[x]\nb = 2\n[mcp_servers.supervise2]\nurl = "z"\n[y]\n# end\nc = 3\n'
    )
    assert entry("codex", {agents.CODEX: after}) == ENTRIES["codex"]


@pytest.mark.parametrize(
    "odd",
    [
        "a = ",
        'mcp_servers = {other = {command = "x"}}\n',
        'mcp_servers.supervise.url = "x"\n',
        "mcp_servers = 5\n",
        '[mcp_servers]\nsupervise = {url = "x"}\n',
        "text = '''\n[mcp_servers.supervise]\nurl = 1\n'''\n",
    ],
)
def test_codex_in_a_form_that_we_cannot_add_to_is_refused(odd: str) -> None:
    with pytest.raises(BackendError) as caught:
        made("codex", {agents.CODEX: odd})
    assert str(caught.value).startswith(f"{agents.CODEX} ")


@given(st.text(alphabet='[]ab.=\n"\'{}#_ mcpsrvuie1', max_size=60) | st.lists(st.sampled_from(
    ["[mcp_servers.supervise]", "[a]", "url = 1", "'''", '"""', "b = '''", "[[c]]", "[mcp_servers]", "# [x]"]
)).map("\n".join))  # fmt: skip
def test_codex_never_loses_anything(before: str) -> None:
    try:
        after = tomllib.loads(made("codex", {agents.CODEX: before})[agents.CODEX])
    except BackendError:
        return
    if before.strip():
        was = tomllib.loads(before)
        was.setdefault("mcp_servers", {})["supervise"] = ENTRIES["codex"]
        assert after == was


def test_codex_without_supervision_keeps_a_file_as_it_is() -> None:
    assert made("codex", {agents.CODEX: "a = 1"}, supervise=False)[agents.CODEX] == "a = 1"


@KINDS
def test_a_note_that_was_there_stays_around_ours(kind: str) -> None:
    path = agents.NOTES[kind]
    after = made(kind, {path: "# Mine\n\nBe kind."})[path]
    assert after.startswith("# Mine\n\nBe kind.\n\n" + BEGIN + "\n")
    later = made(kind, {path: after + "More.\n"}, supervise=False)[path]
    assert later.startswith("# Mine\n\nBe kind.\n\n" + BEGIN + "\n")
    assert later.endswith(END + "\nMore.\n")
    assert later.count(BEGIN) == later.count(END) == 1
    assert "egress-block" not in later


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(JSON_FILES)), st.dictionaries(st.text(max_size=5), json_values, max_size=5))
def test_any_object_is_kept(kind: str, before: dict[str, Any]) -> None:
    path = JSON_FILES[kind]
    after = json.loads(made(kind, {path: json.dumps(before)})[path])
    assert {key: after[key] for key in before} == before

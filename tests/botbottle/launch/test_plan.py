"""Plans: what a manifest becomes on a host, what is refused there, and the copy that is kept."""

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from botbottle.backends import quotas
from botbottle.core.plan_types import File, Limits, Mount, Plan, Variable
from botbottle.launch import plan, plan_cache
from botbottle.launch.describe import describe
from botbottle.manifest import reader as manifest
from botbottle.manifest.reader import BadManifest, Manifest
from botbottle.provision import trust, variables
from egress.proxy.tls import authority
from tests.support import ROOT

SECRET = "hunter2-of-the-host"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / "bottles" / "demo").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def write(home: Path) -> Iterator[object]:
    """Write the manifest of `demo` and read it."""

    def written(text: str) -> Manifest:
        path = home / "bottles" / "demo.yaml"
        path.write_text(text)
        return manifest.load(path)

    return written  # type: ignore[return-value]


def planned(
    found: Manifest, home: Path, image: dict[str, str] | None = None, command: tuple[str, ...] = ()
) -> Plan:
    return plan.compile(found, slug="demo", home=home, existing=(image or {}).get, extra_command=command)


def refused(found: Manifest, home: Path) -> str:
    with pytest.raises(BadManifest) as caught:
        planned(found, home)
    return str(caught.value)


def test_the_smallest_manifest_becomes_an_idle_bottle_with_a_workspace_of_its_own(home, write) -> None:
    made = planned(write("backend: local"), home)
    directory = home / "bottles" / "demo"
    assert made.directory == str(directory)
    assert (made.command, made.files, made.limits, made.workdir) == ((), (), Limits(), "/workspace")
    assert made.mounts == (
        Mount(str(directory / "workspace"), "/workspace", writable=True),
        Mount(str(directory / "sockets"), "/run/bot-bottle/sockets"),
        Mount(str(directory / "current-config"), "/etc/bot-bottle/current-config"),
        Mount(str(directory / "ca"), "/etc/bot-bottle/ca"),
    )


def test_the_command_is_the_callers_else_the_manifests_else_the_agents(home, write) -> None:
    assert planned(write("agent: claude"), home).command == ("claude",)
    assert planned(write("agent: claude\ncommand: [claude, -p, hi]"), home).command == ("claude", "-p", "hi")
    assert planned(write("agent: claude\ncommand: []"), home).command == ()
    assert planned(write("agent: claude"), home, command=("bash",)).command == ("bash",)


def test_variables_of_the_manifest_win_over_defaults_and_never_over_the_way_out(home, write) -> None:
    found = replace(write("env: {LANG: de, A: {from_env: X}}"), env={
        "LANG": Variable("de"), "A": Variable(from_env="X"), "HTTPS_PROXY": Variable("http://elsewhere"),
    })  # fmt: skip
    made = planned(found, home).variables
    assert made["LANG"] == Variable("de")
    assert made["A"] == Variable(from_env="X")
    assert made["HTTPS_PROXY"] == Variable("http://127.0.0.1:9101")
    assert set(made) >= variables.RESERVED


def test_files_of_the_home_are_copied_and_merged_with_ours(home, write, tmp_path) -> None:
    source = tmp_path / "agent-home"
    (source / ".config" / "tool").mkdir(parents=True)
    (source / ".config" / "tool" / "run.sh").write_text("#!/bin/sh\r\n", newline="")
    (source / ".config" / "tool" / "run.sh").chmod(0o755)
    (source / ".claude.json").write_text('{"theme": "dark"}')
    made = planned(
        write(f"agent: claude\nhome: {source}"), home, {"/home/agent/.claude.json": '{"theme": "image"}'}
    )
    files = {file.path: file for file in made.files}
    assert files["/home/agent/.config/tool/run.sh"] == File(
        "/home/agent/.config/tool/run.sh", "#!/bin/sh\r\n", 0o755
    )
    merged = json.loads(files["/home/agent/.claude.json"].content)
    assert merged["theme"] == "dark"
    assert merged["mcpServers"]["supervise"]["url"] == "http://127.0.0.1:9100/mcp"
    assert len(files) == len(made.files)


@pytest.mark.parametrize(
    ("keys", "hooked"),
    [("", True), ("context: false", False), ("supervise: false", False)],
)
def test_the_session_context_is_fetched_at_the_start_unless_the_manifest_says_no(
    home, write, keys, hooked
) -> None:
    made = planned(write(f"agent: claude\n{keys}\n"), home)
    settings = [file.content for file in made.files if file.path.endswith(".claude/settings.json")]
    assert any("SessionStart" in text for text in settings) is hooked
    assert any(file.path.endswith("bot-bottle-context.py") for file in made.files) is hooked


def test_a_configuration_of_the_image_is_merged(home, write) -> None:
    made = planned(write("agent: codex"), home, {"/home/agent/.codex/config.toml": 'model = "m"\n'})
    (config,) = [file.content for file in made.files if file.path.endswith("config.toml")]
    assert config.startswith('model = "m"\n')


@pytest.mark.parametrize(
    "place", ["/", "/proc", "/proc/1/root", "/proc/self/root", "/sys/fs", "/dev", "/run", "/var/run"]
)
@pytest.mark.parametrize("key", ["workspace.path", "mounts[0].path", "home", "image"])
def test_the_hosts_system_cannot_be_mounted(home, write, key, place) -> None:
    texts = {
        "workspace.path": f"agent: none\nworkspace: {{path: {place}}}",
        "mounts[0].path": f"agent: none\nmounts: [{{path: {place}, target: /data}}]",
    }
    message = refused(write(texts.get(key, f"agent: none\n{key}: {place}")), home)
    assert f"demo.yaml, line 2, {key}: {place} " in message


@pytest.mark.parametrize("place", ["..", ".", "demo", "demo/ca-key.pem", "other/workspace", "link-to-home"])
def test_no_part_of_the_bottles_home_can_be_mounted(home, write, place) -> None:
    (home / "bottles" / "demo" / "ca-key.pem").touch()
    (home / "bottles" / "other" / "workspace").mkdir(parents=True)
    (home / "bottles" / "link-to-home").symlink_to(home)
    message = refused(write(f"mounts:\n- path: {place}\n  target: /data"), home)
    assert "line 2, mounts[0].path: " in message
    assert "every bottle's keys" in message


def test_the_bottles_own_workspace_can_be_named(home, write) -> None:
    (home / "bottles" / "demo" / "workspace" / "project").mkdir(parents=True)
    made = planned(write("workspace: {path: demo/workspace/project, mode: ro}"), home)
    assert made.mounts[0] == Mount(
        str(home / "bottles" / "demo" / "workspace" / "project"), "/workspace", writable=False
    )


def test_the_engines_socket_cannot_be_mounted(home, write, tmp_path, monkeypatch) -> None:
    (tmp_path / "engine").mkdir()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine/docker.sock")
    for place in (tmp_path / "engine", tmp_path / "engine" / ".." / "engine"):
        assert "controls containers" in refused(write(f"mounts: [{{path: {place}, target: /data}}]"), home)


def test_a_socket_cannot_be_mounted(home, write, tmp_path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        message = refused(write(f"mounts: [{{path: {tmp_path}/s, target: /data}}]"), home)
    assert "is a socket or a device" in message


def test_a_source_that_is_not_there_is_refused(home, write, tmp_path) -> None:
    assert "Make it" in refused(write(f"workspace: {{path: {tmp_path}/none}}"), home)
    (tmp_path / "file").touch()
    assert "is not a directory" in refused(write(f"workspace: {{path: {tmp_path}/file}}"), home)
    assert "is not a directory" in refused(write(f"home: {tmp_path}/file"), home)


def test_a_link_is_followed_before_it_is_mounted(home, write, tmp_path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    made = planned(write(f"workspace: {{path: {tmp_path}/link}}"), home)
    assert made.mounts[0].source == str(tmp_path / "real")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("home", "home: {work}/home"),
        ("dockerfile", "dockerfile: {work}/Dockerfile\nbackend: docker"),
        ("image", "image: {work}/home"),
        ("env.A.from_file", "env: {{A: {{from_file: {work}/token}}}}"),
        ("env.A.from_file", "env: {{A: {{from_file: {work}/../work/token}}}}"),
        ("mounts[0].path", "mounts: [{{path: {work}/home, target: /data}}]"),
    ],
)
def test_what_the_host_reads_cannot_lie_where_the_agent_writes(home, write, tmp_path, key, text) -> None:
    """It could put a link there, and read any file of the host at its next start."""
    work = tmp_path / "work"
    (work / "home").mkdir(parents=True)
    (work / "token").touch()
    text = text.format(work=work)
    message = refused(write(f"workspace: {{path: {work}}}\n{text}"), home)
    assert f"line 2, {key}: " in message
    assert "the agent may write to" in message
    assert planned(write(f"workspace: {{path: {work}, mode: ro}}\n{text}"), home)


def test_a_link_in_the_workspace_that_leads_out_is_still_the_agents(home, write, tmp_path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "token").touch()
    (tmp_path / "work" / "token").symlink_to(tmp_path / "token")
    text = f"workspace: {{path: {tmp_path}/work}}\nenv: {{A: {{from_file: {tmp_path}/work/token}}}}"
    assert "the agent may write to" in refused(write(text), home)


def leads_to(link: Path, target: Path) -> None:
    """What an agent does to a link in its workspace."""
    link.parent.mkdir(parents=True, exist_ok=True)
    target.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target)


@pytest.mark.parametrize(
    "text",
    [
        "mounts: [{{path: {path}, target: /data}}]",
        "home: {path}",
        "image: {path}",
        "backend: docker\nimage: a:1\ndockerfile: {path}/Dockerfile",
    ],
)
@pytest.mark.parametrize("by", ["work/data", "way/data", "work/up/../data"])
def test_a_link_that_the_agent_could_turn_is_not_followed(home, write, tmp_path, text, by) -> None:
    """Neither by its own name, nor by a way that only leads through the workspace."""
    leads_to(tmp_path / "work" / "data", tmp_path / "private")
    (tmp_path / "work" / "up").mkdir()
    (tmp_path / "way").symlink_to("work")
    found = write(f"workspace: {{path: {tmp_path}/work}}\n{text.format(path=tmp_path / by)}")
    assert f"lies in {tmp_path}/work, which the agent may write to" in refused(found, home)


def test_a_workspace_in_a_writable_mount_is_refused(home, write, tmp_path) -> None:
    leads_to(tmp_path / "proj" / "ws", tmp_path / "private")
    text = "workspace: {{path: {0}/ws}}\nmounts: [{{path: {0}, target: /data, mode: {1}}}]"
    message = refused(write(text.format(tmp_path / "proj", "rw")), home)
    assert "line 1, workspace.path: " in message
    assert "the agent may write to" in message
    assert planned(write(text.format(tmp_path / "proj", "ro")), home)


def test_a_workspace_by_a_link_in_itself_is_refused(home, write, tmp_path) -> None:
    leads_to(tmp_path / "proj" / "again", tmp_path / "proj")
    assert "may write to" in refused(write(f"workspace: {{path: {tmp_path}/proj/again}}"), home)
    assert "may write to" in refused(write(f"workspace: {{path: {tmp_path}/proj/sub/..}}"), home)


@pytest.mark.parametrize("by", ["link", "link/deeper", "real/../link", "away"])
def test_no_link_in_the_bottles_own_workspace_is_followed(home, write, tmp_path, by) -> None:
    own = home / "bottles" / "demo" / "workspace"
    (own / "real" / "deeper").mkdir(parents=True)
    leads_to(own / "link", own / "real")
    leads_to(own / "away", tmp_path / "private")
    message = refused(write(f"workspace: {{path: demo/workspace/{by}}}"), home)
    assert "goes through a link" in message
    assert planned(write("workspace: {path: demo/workspace/real/deeper}"), home)


@pytest.mark.parametrize("whose", ["demo", "other"])
def test_no_bottles_own_workspace_leads_a_mount_elsewhere(home, write, tmp_path, whose) -> None:
    leads_to(home / "bottles" / whose / "workspace" / "data", tmp_path / "private")
    text = "workspace: {path: %s}\nmounts: [{path: %s/workspace/data, target: /data}]"
    (tmp_path / "work").mkdir()
    assert "may write to" in refused(write(text % (tmp_path / "work", whose)), home)


def test_a_manifest_in_a_writable_mount_is_refused(home, tmp_path) -> None:
    (tmp_path / "here").mkdir()
    path = tmp_path / "here" / "demo.yaml"
    path.write_text("mounts: [{path: ., target: /data, mode: rw}]")
    assert "the agent may write to" in refused(manifest.load(path), home)


def test_a_home_that_holds_a_workspace_is_refused(home, write, tmp_path) -> None:
    (tmp_path / "proj" / "work").mkdir(parents=True)
    text = f"workspace: {{path: {tmp_path}/proj/work}}\nhome: {tmp_path}/proj"
    assert "line 2, home: " in refused(write(text), home)


def neighbour(home: Path, text: str, *, started: bool = True) -> None:
    (home / "bottles" / "other" / "run").mkdir(parents=True, exist_ok=True)
    (home / "bottles" / "other.yaml").write_text(text)
    if started:
        (home / "bottles" / "other" / plan_cache.COMMAND_FILE).write_text("[]")


@pytest.mark.parametrize(
    "text",
    [
        "workspace: {{path: {0}/sub}}",
        "mounts: [{{path: {0}/sub, target: /data}}]",
        "home: {0}/sub",
        "env: {{A: {{from_file: {0}/token}}}}",
    ],
)
def test_what_one_bottle_writes_no_other_is_led_through_whichever_comes_first(
    home, write, tmp_path, text
) -> None:
    (tmp_path / "proj" / "sub").mkdir(parents=True)
    reads, writes = text.format(tmp_path / "proj"), f"workspace: {{path: {tmp_path}/proj}}"
    neighbour(home, writes)
    assert "which the agent of bottle 'other' may write to" in refused(write(reads), home)
    neighbour(home, reads)
    message = refused(write(writes), home)
    assert "line 1, workspace.path: " in message
    assert "Bottle 'other' names it as " in message


def test_bottles_may_share_a_directory_as_a_whole(home, write, tmp_path) -> None:
    (tmp_path / "proj").mkdir()
    neighbour(home, f"workspace: {{path: {tmp_path}/proj}}")
    assert planned(write(f"workspace: {{path: {tmp_path}/proj}}"), home)
    assert planned(write(f"mounts: [{{path: {tmp_path}/proj, target: /data}}]"), home)


@pytest.mark.parametrize("text", ["workspace: {{path: {0}/proj}}", "nonsense: {0}"])
def test_a_neighbour_that_never_ran_or_cannot_start_is_in_nobodys_way(home, write, tmp_path, text) -> None:
    (tmp_path / "proj" / "sub").mkdir(parents=True)
    neighbour(home, text.format(tmp_path), started="nonsense" in text)
    assert planned(write(f"workspace: {{path: {tmp_path}/proj/sub}}"), home)


def test_a_link_without_an_end_is_refused(home, write, tmp_path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "links" in refused(write(f"workspace: {{path: {tmp_path}/loop}}"), home)


def test_a_manifest_that_its_bottle_could_rewrite_is_refused(home, tmp_path) -> None:
    path = tmp_path / "work" / "demo.yaml"
    path.parent.mkdir()
    path.write_text("workspace: {path: .}")
    assert "the agent may write to" in refused(manifest.load(path), home)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mounts: [{path: P, target: /data}, {path: P, target: /data/x}]", "cover each other"),
        ("mounts: [{path: P, target: /data/x}, {path: P, target: /data}]", "cover each other"),
        (
            "agent: claude\nmounts: [{path: P, target: /home/agent/.claude}]",
            "would hide /home/agent/.claude/",
        ),
    ],
)
def test_mounts_that_hide_something_are_refused(home, write, tmp_path, text, says) -> None:
    (tmp_path / "p").mkdir()
    assert says in refused(write(text.replace("P,", f"{tmp_path}/p,")), home)


@pytest.mark.parametrize("odd", ["link", "binary", "pipe", "folder-link"])
def test_a_home_with_something_odd_in_it_is_refused(home, write, tmp_path, odd) -> None:
    source = tmp_path / "agent-home"
    source.mkdir()
    match odd:
        case "link":
            (source / "x").symlink_to("/etc/hostname")
        case "folder-link":
            (source / "x").symlink_to("/etc")
        case "binary":
            (source / "x").write_bytes(b"\xff\xfe")
        case "pipe":
            os.mkfifo(source / "x")
    assert "line 1, home: " in refused(write(f"home: {source}"), home)


def test_a_description_shows_literals_and_only_names_of_secrets(home, write, monkeypatch) -> None:
    monkeypatch.setenv("HOST_TOKEN", SECRET)
    (home / "secret").write_text(SECRET)
    (home / "bottles" / "agent-home").mkdir()
    found = write(
        "agent: gemini\nenv:\n  TOKEN: {from_env: HOST_TOKEN}\n  OTHER: {from_file: ../secret}\n"
        '  WORDS: "a b"\n  SCREEN: "\\e[2J"\n'
        "limits: {cpus: 1.5, memory: 1g, pids: 99}\ngate_hosts: [c.com]\nroutes:\n"
        "- {host: a.com, methods: [get], path_allowlist: [/x], auth: {scheme: token, token_ref: GH}}\n"
        "- {host: b.com, lease: {max_uses: 3}}\n"
    )
    made = planned(found, home)
    text = describe(made, found)
    for line in (
        "Bottle demo",
        "  backend   local",
        "  command   gemini",
        "  limits    1.5 cpus, 1024 MiB of memory, 99 processes, 4096 descriptors of each process",
        f"            without a control group, memory {quotas.WEAKER['memory']}",
        f"            without a control group, cpus {quotas.WEAKER['cpus']}",
        "  MCP       supervise at http://127.0.0.1:9100/mcp",
        f"  rw  /workspace  from {home}/bottles/demo/workspace",
        "  TOKEN  (secret, from the host's variable HOST_TOKEN)",
        f"  OTHER  (secret, from the host's file {home}/bottles/../secret)",
        "  WORDS='a b'",
        "  SCREEN='\\x1b[2J'",
        "  a.com  GET on /x with GH, added by the proxy",
        "  b.com  every method on every path max_uses 3",
        "  c.com  at the gate",
        "  # You are in a bottle",
    ):
        assert line in text.splitlines()
    assert "/home/agent/.gemini/settings.json  (" in text
    assert SECRET not in text + plan_cache.to_json(made)
    assert made.environment()["TOKEN"] == made.environment()["OTHER"] == SECRET


def test_a_description_says_when_there_is_no_asking(home, write) -> None:
    text = describe(planned(write("agent: claude\nsupervise: false"), home))
    assert "  MCP       none: supervise is false" in text.splitlines()
    assert "egress-block" not in text


texts = st.text(max_size=20)
plans = st.builds(
    Plan,
    slug=texts, backend=texts, directory=texts, image=texts, dockerfile=texts, agent=texts, workdir=texts,
    command=st.lists(texts).map(tuple),
    variables=st.dictionaries(texts, st.builds(Variable, texts) | st.builds(Variable, from_env=texts)),
    files=st.lists(st.builds(File, texts, texts, st.integers(0, 0o777))).map(tuple),
    mounts=st.lists(st.builds(Mount, texts, texts, st.booleans())).map(tuple),
    limits=st.builds(Limits, st.none() | st.floats(0.01, 99), *[st.none() | st.integers(1)] * 3),
    supervise=st.booleans(),
)  # fmt: skip


@given(plans)
def test_a_plan_is_the_same_after_it_was_text(made: Plan) -> None:
    assert plan_cache.from_json(plan_cache.to_json(made)) == made


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: [],
        lambda plain: {**plain, "format": 0},
        lambda plain: {key: value for key, value in plain.items() if key != "mounts"},
        lambda plain: {**plain, "variables": {"A": 1}},
        lambda plain: {**plain, "limits": [1, 2, 3, 4, 5]},
    ],
)
def test_a_text_that_is_no_plan_is_refused(change) -> None:
    plain = json.loads(plan_cache.to_json(Plan("a", "local", "/x")))
    with pytest.raises(ValueError, match="not a plan"):
        plan_cache.from_json(json.dumps(change(plain)))


@pytest.fixture
def kept(home, write, tmp_path) -> Plan:
    """The plan of a bottle with a home and an image, kept after its trust files were made."""
    directory = home / "bottles" / "demo"
    (tmp_path / "agent-home" / "sub").mkdir(parents=True)
    (tmp_path / "agent-home" / "sub" / "file").write_text("one")
    (tmp_path / "image" / "home" / "agent").mkdir(parents=True)
    authority.ensure(directory, "demo")
    trust.write(directory, (directory / "ca.pem").read_bytes())
    found = write(f"agent: claude\nhome: {tmp_path}/agent-home\nimage: {tmp_path}/image\n")
    made = planned(found, home)
    plan.cache(made, found)
    return made


def test_a_kept_plan_is_found_again_and_private(home, kept) -> None:
    directory = home / "bottles" / "demo"
    assert plan_cache.load_fresh(directory, home / "bottles" / "demo.yaml") == kept
    assert stat.S_IMODE((directory / plan_cache.PLAN_FILE).stat().st_mode) == 0o600
    assert [path.name for path in (directory / "run").iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    "change",
    [
        "home/bottles/demo.yaml",
        "home/bottles/demo/ca.pem",
        "home/bottles/demo/ca/bundle.pem",
        "agent-home/sub/file",
        "agent-home/sub/new",
        "agent-home/new",
        "image/home/agent/.claude.json",
    ],
)
def test_a_kept_plan_is_stale_once_an_input_changed(home, kept, tmp_path, change) -> None:
    with (tmp_path / change).open("a") as file:
        file.write(" ")
    assert plan_cache.load_fresh(home / "bottles" / "demo", home / "bottles" / "demo.yaml") is None


@pytest.mark.parametrize(
    "gone", ["home/bottles/demo.yaml", "agent-home/sub/file", "home/bottles/demo/run/plan.json"]
)
def test_a_kept_plan_is_stale_once_an_input_is_gone(home, kept, tmp_path, gone) -> None:
    (tmp_path / gone).unlink()
    assert plan_cache.load_fresh(home / "bottles" / "demo", home / "bottles" / "demo.yaml") is None


def test_a_kept_plan_is_stale_when_the_public_roots_changed(home, kept) -> None:
    plain = json.loads((home / "bottles" / "demo" / plan_cache.PLAN_FILE).read_text())
    assert str(trust.roots_file()) in plain["inputs"]


def test_a_kept_plan_that_is_torn_or_of_another_manifest_is_not_used(home, kept) -> None:
    directory = home / "bottles" / "demo"
    assert plan_cache.load_fresh(directory, home / "bottles" / "other.yaml") is None
    whole = (directory / plan_cache.PLAN_FILE).read_text()
    for torn in (whole[:-9], "", "[]", "null", '{"inputs": []}'):
        (directory / plan_cache.PLAN_FILE).write_text(torn)
        assert plan_cache.load_fresh(directory, home / "bottles" / "demo.yaml") is None


def test_a_plan_is_not_kept_when_its_manifest_was_edited_meanwhile(home, write) -> None:
    found = write("agent: none")
    made = planned(found, home)
    write("agent: claude")
    plan.cache(made, found)
    assert plan_cache.load_fresh(home / "bottles" / "demo", home / "bottles" / "demo.yaml") is None


def test_reading_a_kept_plan_imports_nothing_heavy() -> None:
    code = "import sys, botbottle.launch.plan_cache; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    roots = {name.split(".")[0] for name in loaded.stdout.split()}
    assert not roots & {"django", "yaml", "cryptography", "egress", "supervise", "ssl", "hashlib", "tomllib"}

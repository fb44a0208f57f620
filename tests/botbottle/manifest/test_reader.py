"""Manifests: what is read, and refusals that name the line and the key."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from botbottle.core.plan_types import BackendError, Limits, Mount, Variable
from botbottle.manifest import reader as manifest
from botbottle.manifest.mcp_servers import Spec
from botbottle.manifest.reader import BadManifest, Manifest, Workspace
from botbottle.provision import variables

FULL = re.sub(r"^#(?! \S)", "", manifest.EXAMPLE, flags=re.MULTILINE)


def parsed(text: str) -> Manifest:
    return manifest.parse(text, "demo.yaml", path=Path("/etc/bottles/demo.yaml"))


def refused(text: str) -> str:
    with pytest.raises(BadManifest) as caught:
        parsed(text)
    return str(caught.value)


def test_the_example_is_a_bottle_with_the_defaults() -> None:
    found = parsed(manifest.EXAMPLE)
    assert found == parsed("backend: local")
    assert (found.agent, found.command, found.supervise, found.context) == ("none", None, True, True)
    assert (found.routes, found.gate_hosts, found.mounts) == ((), (), ())


def test_every_setting_of_the_example_can_be_uncommented() -> None:
    found = parsed(FULL.replace("backend: local", "backend: docker"))  # the one that takes them all
    assert set(manifest.KEYS) - {"mcp_servers"} == {
        line.split(":")[0] for line in FULL.splitlines() if line[:1].isalpha()
    }
    assert found.command == ("bash", "-l")
    assert found.limits == Limits(2.0, 4 * 1024**3, 512, 4096)
    assert found.mounts == (Mount(str(Path("~/datasets").expanduser()), "/data"),)
    assert [route["host"] for route in found.routes] == ["api.anthropic.com", "pypi.org"]


def test_relative_paths_start_at_the_manifest() -> None:
    found = parsed(
        "backend: docker\ndockerfile: Dockerfile\nhome: ../homes/a\nworkspace: {path: work, mode: ro}\n"
        "env: {TOKEN: {from_file: token}}\nmounts: [{path: data, target: /data, mode: rw}]\n"
    )
    assert found.dockerfile == "/etc/bottles/Dockerfile"
    assert found.home == "/etc/bottles/../homes/a"
    assert found.workspace == Workspace("/etc/bottles/work", writable=False)
    assert found.env == {"TOKEN": Variable(from_file="/etc/bottles/token")}
    assert found.mounts == (Mount("/etc/bottles/data", "/data", writable=True),)


def test_an_image_is_a_name_for_docker_and_a_path_for_the_others() -> None:
    assert parsed("backend: docker\nimage: localhost/agents:1").image == "localhost/agents:1"
    assert parsed("backend: smolmachines\nimage: root.tar").image == "/etc/bottles/root.tar"
    assert parsed("image: root").image == "/etc/bottles/root"


def test_routes_are_what_an_operators_route_is() -> None:
    (route,) = parsed(
        "routes:\n- host: Intern.Example\n  methods: [get]\n  pinned_addresses: [10.0.0.1]\n"
        "  auth: {scheme: header, header: X-Key, token_ref: KEY}\n"
    ).routes
    assert route == {
        "host": "intern.example",
        "methods": ["GET"],
        "pinned_addresses": ["10.0.0.1"],
        "auth": {"scheme": "header", "token_ref": "KEY", "header": "X-Key"},
    }


def test_managed_servers_are_read() -> None:
    servers = parsed("mcp_servers: {files-1: {command: a, env: {B: '1'}}}").mcp_servers
    assert servers == {"files-1": Spec("files-1", "a", env={"B": Variable("1")})}


@pytest.mark.parametrize(
    ("memory", "size"), [("64m", 64 * 2**20), ("2G", 2 * 2**30), ("1tb", 2**40), (33554432, 2**25)]
)
def test_memory_is_a_size(memory: str | int, size: int) -> None:
    assert parsed(f"limits: {{memory: {memory}}}").limits.memory == size


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("", "line 1", "is empty"),
        ("[a]", "line 1", "must be a mapping with backend"),
        ("backend: local\nimag: x", "line 2, imag", "Did you mean 'image'?"),
        ("agent: none\n\nsupervize: true", "line 3, supervize", "Did you mean 'supervise'?"),
        ("backend: lokal", "line 1, backend", "one of local, docker, smolmachines; got 'lokal'"),
        ("agent: [claude]", "line 1, agent", "one of claude, codex"),
        ("backend: docker", "line 1, backend", "needs an image or a dockerfile"),
        ("backend: docker\nimage: --privileged", "line 2, image", "an image's name"),
        ("image: 5", "line 1, image", "must be text"),
        ("backend: smolmachines", "line 1, backend", "needs an image"),
        ("dockerfile: ''\nbackend: docker", "line 1, dockerfile", "must be a path"),
        ("backend: local\ndockerfile: Dockerfile", "line 2, dockerfile", "local does not build images"),
        ("agent: none\ndockerfile: Dockerfile", "line 2, dockerfile", "Take 'backend: docker'"),
        (
            "backend: smolmachines\nimage: /x\ndockerfile: Dockerfile",
            "line 3, dockerfile",
            "smolmachines does not build images",
        ),
        ("home: ~nobody-by-this-name/x", "line 1, home", "a user who does not exist"),
        ('home: "a\\nb"', "line 1, home", "must be a path"),
        ("command: bash -l", "line 1, command", "a list of words"),
        ("command:\n- a\n- 1", "line 3, command[1]", "must be text"),
        ("command: ['']", "line 1, command[0]", "name the program"),
        ('command: ["a\\0"]', "line 1, command[0]", "NUL"),
        ("env: [A]", "line 1, env", "a mapping of names"),
        ("env:\n  A: x\n  1B: x", "line 3, env.1B", "a variable's name"),
        ("env:\n  A: x\n  'B=C': x", "line 3, env.B=C", "a variable's name"),
        ("env:\n  PORT: 8080", "line 2, env.PORT", "Put it in quotes"),
        ("env:\n  DEBUG: yes", "line 2, env.DEBUG", "Put it in quotes"),
        ("env:\n  A:", "line 2, env.A", "must be text"),
        ("env: {A: {from_env: X, from_file: y}}", "line 1, env.A", "one of from_env and from_file"),
        ('"\\e[2J": x', "line 1, '\\x1b[2J'", "no such key"),
        ("env: {A: {}}", "line 1, env.A", "one of from_env and from_file"),
        ("env: {A: {\n from_envv: X}}", "line 2, env.A.from_envv", "Did you mean 'from_env'?"),
        ("env: {A: {from_env: 'X=Y'}}", "line 1, env.A.from_env", "name a variable of the host"),
        ("workspace: here", "line 1, workspace", "a mapping with path, mode"),
        ("workspace: {path: x, mode: w}", "line 1, workspace.mode", "one of rw, ro"),
        ("mounts: {path: x}", "line 1, mounts", "must be a list"),
        ("mounts:\n- path: x", "line 2, mounts[0].target", "is required"),
        ("mounts:\n- target: /data", "line 2, mounts[0].path", "is required"),
        ("mounts:\n- path: x\n  target: data", "line 3, mounts[0].target", "an absolute path"),
        ("routes:\n- path_allowlist: [/]", "line 2, routes[0]", "host is required"),
        ("routes:\n- host: a.com\n- host: 10.0.0.1", "line 3, routes[1].host", "IP address"),
        ("routes:\n- host: a.com\n  hots: b", "line 3, routes[0].hots", "Did you mean 'host'?"),
        (
            "routes:\n- host: a.com\n  path_allowlist:\n  - /a\n  - b",
            "line 5, routes[0].path_allowlist[1]",
            "must start with '/'",
        ),
        ("routes:\n- host: a.com\n  methods: [GET, 1]", "line 3, routes[0].methods[1]", "an HTTP method"),
        ("routes:\n- host: a.com\n  lease:\n    max_uses: 0", "line 4, routes[0].lease.max_uses", "1 to"),
        ("routes:\n- host: a.com\n  auth: {scheme: Bearer}", "line 3, routes[0].auth.token_ref", "required"),
        (
            "routes:\n- host: a.com\n  auth:\n    scheme: Bearer\n    token_ref: 'not a name'",
            "line 5, routes[0].auth.token_ref",
            "never the secret itself",
        ),
        (
            "routes:\n- host: a.com\n  auth: {scheme: SigV4, token_ref: AWS}",
            "line 2, routes[0]",
            "SigV4",
        ),
        ("routes:\n- host: a.com\n- host: A.com.", "line 3, routes[1].host", "stands twice"),
        ("gate_hosts:\n- a.com\n- '*.com'", "line 3, gate_hosts[1]", "it "),
        ("gate_hosts: [1]", "line 1, gate_hosts[0]", "must be text"),
        ("limits: {cpus: true}", "line 1, limits.cpus", "a number from 0.01"),
        ("limits: {cpus: .nan}", "line 1, limits.cpus", "a number from 0.01"),
        ("limits: {cpus: 0}", "line 1, limits.cpus", "a number from 0.01"),
        ("limits:\n  memory: 2 GB", "line 2, limits.memory", "a size such as 2g"),
        ("limits:\n  memory: 1m", "line 2, limits.memory", "at least 32m"),
        ("limits:\n  memory: 9999999999t", "line 2, limits.memory", "a size such as 2g"),
        ("limits:\n  pids: 1.5", "line 2, limits.pids", "a whole number from 16"),
        ("limits:\n  files: 63", "line 2, limits.files", "a whole number from 64"),
        ("limits:\n  cores: 2", "line 2, limits.cores", "Allowed: cpus, memory, pids, files"),
        ("supervise: 'no'", "line 1, supervise", "true or false"),
        ("context: 1", "line 1, context", "true or false"),
        ("mcp_servers: {supervise: {}}", "line 1, mcp_servers.supervise", "not 'supervise'"),
        ("mcp_servers: {A_b: {}}", "line 1, mcp_servers.A_b", "a-z, 0-9"),
        ("mcp_servers: {a: x}", "line 1, mcp_servers.a", "must be a mapping"),
        ("agent: none\nagent: claude", "line 2", "'agent' stands twice"),
        ("env:\n  A: &x y\n  B: *x", "line 2", "anchors are not allowed"),
        ("agent: !!str none", "line 1", "tags are not allowed"),
        ("agent: !!python/object:os.system x", "line 1", "tags are not allowed"),
        ("env:\n  true: x", "line 2", "is not text"),
        ("? [a]\n: b", "line 1", "is not text"),
        ("a: {\n", "line 2", "not valid YAML"),
        ("agent: none\n---\nagent: claude", "line 2", "not valid YAML"),
        ("agent: \x07", "line 1", "not valid YAML"),
        ("mcp_servers: " + "{a: " * 20 + "1" + "}" * 20, "line 1", "nested too deeply"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_file_the_line_and_the_key(text: str, where: str, says: str) -> None:
    message = refused(text)
    assert message.startswith(f"demo.yaml, {where}: ")
    assert says in message


@pytest.mark.parametrize("name", sorted(variables.RESERVED))
def test_a_variable_that_the_bottle_sets_is_refused(name: str) -> None:
    assert "the bottle sets this itself" in refused(f"env:\n  {name}: x")


@pytest.mark.parametrize("name", sorted(variables.default_variables()))
def test_a_default_variable_can_be_set(name: str) -> None:
    assert parsed(f"env: {{{name}: x}}").env == {name: Variable("x")}


@pytest.mark.parametrize(
    "target",
    [
        "/", "//data", "/data/", "/data/../etc", "/a/./b", "data", "", "/a\nb",
        "/workspace", "/workspace/sub", "/home/agent", "/home", "/tmp", "/var/run/x",
        "/run", "/run/bot-bottle/sockets", "/etc/bot-bottle", "/etc/ssl/certs", "/proc", "/sys/fs", "/dev/x",
        "/usr/local", "/bin", "/lib", "/lib64/x", "/root",
    ],
)  # fmt: skip
def test_a_mount_cannot_hide_what_is_the_bottles_own(target: str) -> None:
    message = refused(f"mounts:\n- path: x\n  target: {target!r}".replace("\\n", "\n\n  "))
    assert message.startswith("demo.yaml, line 3, mounts[0].target: ")


@pytest.mark.parametrize("target", ["/data", "/opt/models", "/home/agent/.cache/pip", "/srv", "/mnt/x y"])
def test_a_mount_can_stand_elsewhere(target: str) -> None:
    assert parsed(f"mounts: [{{path: x, target: {target}}}]").mounts[0].target == target


def test_a_file_is_loaded_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text("home: here\n")
    found = manifest.load(path)
    assert (found.path, found.home) == (str(path), str(tmp_path / "here"))
    assert str(found.refuse("home", "is wrong.")) == f"{path}, line 1, home: is wrong."


def test_a_missing_file_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="'bottle init demo'"):
        manifest.load(tmp_path / "demo.yaml")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_bytes(b"agent: \xff")
    with pytest.raises(BadManifest, match="UTF-8"):
        manifest.load(tmp_path / "demo.yaml")


@given(
    st.text(max_size=200)
    | st.lists(st.sampled_from([*FULL.splitlines(), "- ", "  x: [", "&a", "!b"])).map("\n".join)
)
def test_any_text_is_a_manifest_or_refused(text: str) -> None:
    try:
        parsed(text)
    except BadManifest as error:
        assert re.match(r"demo\.yaml, line \d+", str(error))

"""The manifest that `bottle init` writes; settings behind '#' are meant to be uncommented."""

from typing import Final

EXAMPLE: Final = """\
# What this bottle is. Everything has a default: an idle sandbox on this host that reaches nothing.
# 'bottle plan SLUG' shows what a manifest means before anything runs. docs/use/manifest.md explains each key.

# Where it runs: local (bubblewrap, this host's programs, read-only), docker or smolmachines.
backend: local

# What it starts from. docker: an image's name. smolmachines: a directory or archive. local: a directory with
# a root file system, or nothing for this host's programs. docker also: a Dockerfile, beside this file.
#image: agents:1
#dockerfile: Dockerfile

# Who lives in it: claude, codex, gemini, opencode or none. Its MCP entry is written for it.
agent: none

# What is started in it; left out, the agent's own command.
#command: [bash, -l]

# Variables. Secrets come from the host's environment or from a file, at each start. The proxy does not let
# them out but on a route with 'dlp: {out: false}'.
# A credential that only goes to one host is safer in 'auth' of a route: then it never enters the bottle.
#env:
#  EDITOR: vi
#  ANTHROPIC_API_KEY: {from_env: ANTHROPIC_API_KEY}
#  NPM_TOKEN: {from_file: ~/.secrets/npm-token}

# What it works on, at /workspace. Left out, a directory of its own that is kept between starts.
#workspace:
#  path: ~/projects/demo
#  mode: rw

# A directory with configuration files for the agent's home; what the bottle adds is merged into them.
#home: agent-home

# More of the host, read-only unless 'mode: rw'.
#mounts:
#  - path: ~/datasets
#    target: /data
#    mode: ro

# What it may reach from its first start on. Later, the agent asks and you decide.
#routes:
#  - host: api.anthropic.com
#    path_allowlist: [/v1/messages]
#    methods: [POST]
#    auth: {scheme: Bearer, token_ref: ANTHROPIC_TOKEN}
#  - host: pypi.org
#    lease: {ttl_seconds: 86400}
#gate_hosts: [files.pythonhosted.org]

#limits:
#  cpus: 2
#  memory: 4g
#  pids: 512
#  files: 4096

# false: no MCP entry; the agent cannot ask, only be refused.
supervise: true

# Give the agent what it may know about its bottle when a session starts.
context: true
"""

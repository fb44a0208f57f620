"""Describes a plan as text for people: what `bottle plan` prints."""

from __future__ import annotations

from collections.abc import Iterator

from botbottle import backends
from botbottle.backends import quotas
from botbottle.core.plan_types import HOME_INSIDE, UID_INSIDE, USER_INSIDE, Plan, Variable
from botbottle.manifest.reader import Manifest
from botbottle.provision import agents, variables


def describe(plan: Plan, manifest: Manifest | None = None) -> str:
    """Describe what would be started and what the agent will see; with the manifest, its routes too."""
    parts = [
        (f"Bottle {plan.slug}", _described_bottle(plan)),
        (
            "Mounted",
            [f"{'rw' if each.writable else 'ro'}  {each.target}  from {each.source}" for each in plan.mounts],
        ),
        ("Variables", [_described_variable(*entry) for entry in sorted(plan.variables.items())]),
        ("Files", [f"{file.path}  ({len(file.content.encode())} bytes)" for file in plan.files]),
    ]
    if manifest is not None:
        parts.append(("Open at the first start", _described_routes(manifest)))
    note = next((file.content for file in plan.files if file.path == agents.NOTES.get(plan.agent)), "")
    parts.append(("The agent reads", note.splitlines()))
    return "\n".join(
        line for title, lines in parts if lines for line in (title, *(f"  {each}" for each in lines), "")
    )


def _described_bottle(plan: Plan) -> list[str]:
    limits, *weaker = _described_limits(plan)
    entry = f"{agents.SERVER} at {variables.MCP_URL}"
    if plan.agent == "none":
        entry += " (no entry is written for an agent of kind none)"
    return [
        f"backend   {plan.backend}",
        f"image     {plan.image or plan.dockerfile or 'the programs of this host, read-only'}",
        *([f"built     from {plan.dockerfile}"] if plan.image and plan.dockerfile else []),
        f"agent     {plan.agent}",
        f"command   {' '.join(map(_shown, plan.command)) or 'none: idle until something is executed in it'}",
        f"user      {USER_INSIDE} ({UID_INSIDE}), in {plan.workdir}; {HOME_INSIDE} is new at each start",
        f"limits    {limits}",
        *(f"          {line}" for line in weaker),
        f"network   none but the proxy at {variables.PROXY_URL}, which denies by default",
        f"MCP       {entry if plan.supervise else 'none: supervise is false'}",
    ]


def _described_limits(plan: Plan) -> Iterator[str]:
    """All limits in one line; then a line for each that does not hold everywhere."""
    limits = plan.limits
    limited = [
        f"{limits.cpus:g} cpus" if limits.cpus else "",
        f"{limits.memory / 1024**2:.0f} MiB of memory" if limits.memory else "",
    ]
    if backends.traits(plan.backend).limits_processes:
        limited.append(f"{limits.pids or quotas.processes()} processes")
        limited.append(f"{limits.files or quotas.FILES} descriptors of each process")
    yield ", ".join(filter(None, limited)) or "none"
    if backends.traits(plan.backend).needs_cgroups:
        for name, holds in quotas.WEAKER.items():
            if getattr(limits, name):
                yield f"without a control group, {name} {holds}"


def _described_variable(name: str, variable: Variable) -> str:
    if variable.value is not None:
        return f"{name}={_shown(variable.value)}"
    source = (
        f"variable {variable.from_env}" if variable.from_env is not None else f"file {variable.from_file}"
    )
    return f"{name}  (secret, from the host's {source})"


def _described_routes(manifest: Manifest) -> list[str]:
    lines = []
    for route in manifest.routes:
        words = [", ".join(route.get("methods", ())) or "every method", "on"]
        words += [", ".join(route.get("path_allowlist", ())) or "every path"]
        if "auth" in route:
            words.append(f"with {route['auth']['token_ref']}, added by the proxy")
        if "lease" in route:
            words.append(", ".join(f"{key} {value}" for key, value in route["lease"].items()))
        lines.append(f"{route['host']}  {' '.join(words)}")
    return lines + [f"{host}  at the gate" for host in manifest.gate_hosts]


def _shown(text: str) -> str:
    """Plain text as it is; other text quoted and escaped, since a terminal interprets it."""
    return text if text.isprintable() and text and " " not in text else ascii(text)

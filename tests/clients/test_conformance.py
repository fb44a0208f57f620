"""The official conformance suite against a running bottle endpoint, in both protocol eras, held to a baseline
that excuses single checks, never whole scenarios, and says why."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.isolated_clients import HERE, Clients, Finished, Island

pytestmark = pytest.mark.clients

GENERIC = {
    "2025-11-25": {
        "server-initialize",
        "server-session-lifecycle",
        "ping",
        "tools-list",
        "dns-rebinding-protection",
        "server-sse-multiple-streams",
    },
    "2026-07-28": {
        "server-stateless",
        "tools-list",
        "caching",
        "dns-rebinding-protection",
        "http-header-validation",
        "server-sse-multiple-streams",
    },
}
# The only words with which a check of a generic scenario may fail: what it wants to look at is not offered.
NOT_OFFERED = (
    "Not testable: server does not list the diagnostic tool",
    "returned JSON-RPC error -32601",
    "Server did not provide session ID",
)
LEAST_CHECKS = {
    "2025-11-25": {"server-initialize": 2, "ping": 2, "tools-list": 3, "dns-rebinding-protection": 2},
    "2026-07-28": {
        "server-stateless": 21,
        "tools-list": 4,
        "caching": 4,
        "dns-rebinding-protection": 2,
        "http-header-validation": 14,
        "server-sse-multiple-streams": 1,
    },
}
ENTRY = re.compile(r"  - (?P<scenario>[\w-]+):(?P<check>[\w$-]+)  # (?P<reason>\w.{9,})")
FAILING = {"FAILURE", "WARNING"}


def baseline_file(revision: str) -> Path:
    return HERE / f"baseline-{revision}.yml"


def baseline(revision: str) -> set[tuple[str, str]]:
    entries = (ENTRY.fullmatch(line) for line in baseline_file(revision).read_text().splitlines())
    return {(entry["scenario"], entry["check"]) for entry in entries if entry}


@dataclass(frozen=True)
class SuiteRun:
    revision: str
    finished: Finished
    checks: dict[str, list[dict[str, Any]]]

    def failures(self) -> dict[tuple[str, str], str]:
        return {
            (scenario, check["id"]): words(check)
            for scenario, checks in self.checks.items()
            for check in checks
            if check["status"] in FAILING
        }

    def passed(self) -> set[tuple[str, str]]:
        """Checks of which every occurrence passed (a check can occur many times in a scenario)."""
        seen = {
            (scenario, check["id"])
            for scenario, checks in self.checks.items()
            for check in checks
            if check["status"] == "SUCCESS"
        }
        return seen - set(self.failures())


def words(check: dict[str, Any]) -> str:
    details = check.get("details") or {}
    return f"{check.get('errorMessage') or ''} {details.get('message') or ''}".strip()


@pytest.fixture(scope="module", params=sorted(GENERIC))
def run(
    request: pytest.FixtureRequest, island: Island, clients: Clients, tmp_path_factory: pytest.TempPathFactory
) -> SuiteRun:
    home = tmp_path_factory.mktemp("conformance")
    finished = island.run(
        *(clients.node, "--require", str(HERE / "authorize.cjs"), clients.script("conformance"), "server"),
        *("--url", island.bottle.url, "--requirements", request.param),
        *("--expected-failures", str(baseline_file(request.param)), "--output-dir", str(home / "results")),
        home=home,
        env={"MCP_AUTHORIZATION": island.bottle.authorization},
    )
    files = sorted((home / "results").glob("*/checks.json"))
    return SuiteRun(
        request.param, finished, {scenario_of(file): json.loads(file.read_text()) for file in files}
    )


def scenario_of(file: Path) -> str:
    return re.sub(r"^server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z$", r"\1", file.parent.name)


def test_the_suite_itself_finds_only_expected_failures(run: SuiteRun) -> None:
    assert run.finished.code == 0, run.finished.said[-6000:]


def test_no_check_fails_that_the_baseline_does_not_name(run: SuiteRun) -> None:
    """The suite does not count some scenarios (header validation, the tasks extension); we do."""
    unexpected = {key: why for key, why in run.failures().items() if key not in baseline(run.revision)}
    assert not unexpected


def test_no_check_in_the_baseline_passes_by_now(run: SuiteRun) -> None:
    assert not baseline(run.revision) & run.passed()


def test_every_generic_scenario_passes_but_for_what_is_not_offered(run: SuiteRun) -> None:
    for scenario in GENERIC[run.revision]:
        checks = run.checks[scenario]
        assert checks, f"{scenario} did not run"
        broken = [words(check) for check in checks if check["status"] in FAILING]
        assert [why for why in broken if not any(excuse in why for excuse in NOT_OFFERED)] == []


def test_the_generic_scenarios_really_looked(run: SuiteRun) -> None:
    """A scenario that gives up early has few checks and no failure."""
    for scenario, at_least in LEAST_CHECKS[run.revision].items():
        assert sum(check["status"] == "SUCCESS" for check in run.checks[scenario]) >= at_least, scenario


def test_the_server_never_broke(run: SuiteRun, island: Island) -> None:
    """An excused check may fail only by our refusal, never by an accident of ours."""
    assert [request for request in island.requests() if request["status"] >= 500] == []
    assert "Traceback" not in island.log.read_text()


@pytest.mark.parametrize("revision", sorted(GENERIC))
def test_every_line_of_the_baseline_names_one_check_and_its_reason(revision: str) -> None:
    text = baseline_file(revision).read_text()
    lines = [line for line in text.splitlines() if line.lstrip().startswith("-")]
    assert lines
    assert [line for line in lines if not ENTRY.fullmatch(line)] == []


@pytest.mark.parametrize("revision", sorted(GENERIC))
def test_the_baseline_excuses_no_malformed_message(revision: str) -> None:
    assert [scenario for scenario, check in baseline(revision) if check == "wire-schema-valid"] == []


@pytest.mark.parametrize("revision", sorted(GENERIC))
def test_the_baseline_names_no_generic_scenario_as_a_whole(revision: str) -> None:
    named = {line.split("#")[0].strip(" -") for line in baseline_file(revision).read_text().splitlines()}
    assert not named & GENERIC[revision]

"""Do the books stay true when things break? Faults under load, and a check of everything at the end.

Run `.venv/bin/python bench/faults.py` (`--rounds N`, `--seed S` to repeat the choices of a run, `--quick`
for a smoke run, `--only sqlite` or `--only postgres`).

Agents ask for paths of their own, fetch what they asked for and what they never asked for; two operators
decide the same cards at random. In every round one thing breaks: a process is killed or stopped, the disk is
full, the supervisor, PostgreSQL or Redis is restarted. At the end: each proposal has at most one outcome, and
operators and agents were told that one; every approval is live at the proxy; nothing got to an origin that no
table version allowed; the audit chain verifies; no process is left. Otherwise it prints the seed and exits
with 1.

The seed fixes which faults come in which order and what agents and operators choose, not the machine's
timing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import secrets
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)  # or this file's neighbours would hide packages that have their names

from bench.fault_parts.faults import faults  # noqa: E402
from bench.fault_parts.installation import Installation, running_installation  # noqa: E402
from bench.fault_parts.load import Load  # noqa: E402
from tests.support.leftovers import leftovers  # noqa: E402
from tests.support.origins import Origins  # noqa: E402
from tests.support.timeouts import wait_until  # noqa: E402

ROUNDS, QUICK_ROUNDS = 40, 8  # PostgreSQL and Redis have eight faults, SQLite has seven
AGENTS, OPERATORS = 4, 2


async def run(made: Installation, origins: Origins, rounds: int, seed: int) -> list[str]:
    """What contradicts what, after so many rounds."""
    chance, load = random.Random(seed), Load(made, seed, AGENTS, OPERATORS)
    running = asyncio.create_task(load.run())
    try:
        for number, fault in zip(range(1, rounds + 1), faults(made, chance), strict=False):
            await asyncio.sleep(chance.uniform(0.5, 2))
            began = time.monotonic()
            await asyncio.to_thread(fault.happen, made, chance)
            await asyncio.to_thread(wait_until, made.is_well, what=f"recovery from {fault.name}")
            print(
                f"  {number:>3}. {fault.name}: well again after {time.monotonic() - began:.1f} s", flush=True
            )
        await asyncio.sleep(2)
    finally:
        load.end()
        await running
    evidence = asdict(load.evidence) | {"bottles": load.slugs, "origin": _paths_at(origins)}
    print(
        f"  agents were answered {len(load.evidence.told)} times, {load.evidence.failed} calls were cut;"
        f" operators decided {sum(code == 200 for *_, code in load.evidence.decided)};"
        f" {load.evidence.fetched} requests got through, {load.evidence.refused} did not"
    )
    return [*_contradictions(made, evidence), *_audit(made)]


def _paths_at(origins: Origins) -> list[tuple[str, str]]:
    return [(seen.origin, seen.target) for seen in list(origins.requests)]


def _contradictions(made: Installation, evidence: dict[str, object]) -> list[str]:
    finished = subprocess.run(
        [sys.executable, "-m", "bench.fault_parts.books"],
        cwd=ROOT,
        env=made.environment,
        input=json.dumps(evidence),
        text=True,
        capture_output=True,
        check=False,
    )
    if finished.returncode:
        raise SystemExit(f"The check of the books failed: {finished.stderr}")
    return list(json.loads(finished.stdout))


def _audit(made: Installation) -> list[str]:
    finished = made.manage("verify_audit")
    return [] if finished.returncode == 0 else [f"verify_audit: {finished.stdout}{finished.stderr}"]


def run_on(database: str, rounds: int, seed: int) -> list[str]:
    print(f"{database}, {rounds} rounds, --seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="f.", dir="/tmp") as place:
        root = Path(place)
        root.chmod(0o755)  # PostgreSQL runs as a user of its own
        with running_installation(root, shared=database == "postgres") as (made, origins):
            if not made.is_own_disk and database == "sqlite":
                print("  no full disk: mounting a small file system needs root")
            found = asyncio.run(run(made, origins, rounds, seed))
        return found + [f"left behind: {what}" for what in leftovers(root)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="faults on each database")
    parser.add_argument("--seed", type=int, default=None, help="of an earlier run, to repeat its choices")
    parser.add_argument("--quick", action="store_true", help="each fault at least once")
    parser.add_argument("--only", choices=["sqlite", "postgres"])
    options = parser.parse_args()
    seed = secrets.randbelow(10**9) if options.seed is None else options.seed
    rounds = QUICK_ROUNDS if options.quick else options.rounds
    wrong = []
    for database in [options.only] if options.only else ["sqlite", "postgres"]:
        found = run_on(database, rounds, seed)
        wrong += found
        for contradiction in found:
            print(f"  WRONG: {contradiction}")
        print(f"  {'bar not met' if found else 'bar met'}: {len(found)} contradictions")
    if wrong:
        print(f"Repeat it with --seed {seed}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""From `bottle run` to the agent's first instruction, beside bare bubblewrap; and what an idle bottle weighs.

Both start the same agent, which prints the clock and ends, so that its own start-up time cancels out. Runs
take turns, and ours have a kept plan: a bottle's first run, which loads Django, is not measured. Weight is
PSS from smaps_rollup (pages shared with other processes count in part) of the three processes that are ours:
supervisor, bubblewrap, init. Exits with 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from botbottle.backends.local.backend import LocalBackend  # noqa: E402
from botbottle.core.interpreter import host_interpreter  # noqa: E402
from botbottle.launch import plan  # noqa: E402
from botbottle.manifest import reader as manifest  # noqa: E402

OVERHEAD_BAR_MS, MEMORY_BAR_KB = 100.0, 10 * 1024
SLUG = "bench"
AGENT = (host_interpreter(), "-I", "-S", "-c", "import time; print(time.monotonic_ns())")
BARE = ("bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev")


@contextmanager
def bottle() -> Iterator[tuple[Path, plan.Plan]]:
    """A home with one bottle whose plan is kept, as after its first run; its sockets answer."""
    home = Path(tempfile.mkdtemp(prefix="bb-"))
    directory = home / "bottles" / SLUG
    for name in ("sockets", "current-config", "ca", "workspace"):
        (directory / name).mkdir(parents=True)
    (directory / "ca" / "bundle.pem").touch()
    path = home / "bottles" / f"{SLUG}.yaml"
    path.write_text("backend: local\n")
    loaded = manifest.load(path)
    compiled = plan.compile(loaded, slug=SLUG, home=home, existing=lambda _: None)
    (directory / "run").mkdir(mode=0o700)
    plan.cache(compiled, loaded)
    with ExitStack() as sockets:
        for name in ("proxy", "agent"):
            listener = sockets.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(directory / "sockets" / f"{name}.sock"))
            listener.listen(512)
        try:
            yield home, compiled
        finally:
            LocalBackend(home).remove(SLUG)
            shutil.rmtree(home)


def to_first_instruction(words: tuple[str, ...], environment: dict[str, str]) -> float:
    """Milliseconds."""
    begun = time.monotonic_ns()
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode or not done.stdout.strip().isdigit():
        raise SystemExit(f"{words[0]} failed ({done.returncode}): {done.stderr}{done.stdout}")
    return (int(done.stdout) - begun) / 1e6


def launches(home: Path, runs: int) -> dict[str, list[float]]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "BOTTLE_HOME": str(home), "LANG": "C.UTF-8"}
    ours = (sys.executable, str(ROOT / "manage.py"), "bottle", "run", SLUG, "--", *AGENT)
    subjects = {"bottle run": ours, "bare bwrap": (*BARE, *AGENT)}
    for words in subjects.values():
        to_first_instruction(words, environment)  # once for the caches
    found: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(runs):
        for name, words in subjects.items():
            found[name].append(to_first_instruction(words, environment))
    return found


def weigh(home: Path, compiled: plan.Plan) -> dict[str, int]:
    """kB of each part of an idle bottle."""
    backend = LocalBackend(home)
    backend.start(replace(compiled, command=()), print)
    supervisor = backend.life(SLUG).pid
    sandbox = child_of(supervisor)
    parts = {"supervisor": supervisor, "bwrap": sandbox, "init": child_of(sandbox)}
    weights = {name: pss(pid) for name, pid in parts.items()}
    backend.stop(SLUG)
    return weights


def child_of(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def pss(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def verdict(met: bool) -> str:
    return "bar met" if met else "bar not met"


def main() -> int:
    parser = argparse.ArgumentParser(
        description="How long a local bottle takes to start, and what it weighs."
    )
    parser.add_argument("--runs", type=int, default=30)
    runs = parser.parse_args().runs
    with bottle() as (home, compiled):
        found = launches(home, runs)
        weights = weigh(home, compiled)
    print(f"to the agent's first instruction with a kept plan, {runs} runs each, taking turns (ms):")
    for name, times in found.items():
        print(f"  {name:<12} median {median(times):6.1f}   p90 {quantiles(times, n=10)[-1]:6.1f}")
    overhead = median(found["bottle run"]) - median(found["bare bwrap"])
    in_time = overhead <= OVERHEAD_BAR_MS
    print(f"  overhead     median {overhead:6.1f}   (bar: {OVERHEAD_BAR_MS:.0f}): {verdict(in_time)}")
    total = sum(weights.values())
    light = total <= MEMORY_BAR_KB
    shares = ", ".join(f"{name} {kb / 1024:.1f}" for name, kb in weights.items())
    print(f"an idle bottle's own parts, PSS: {total / 1024:.1f} MB ({shares}; bar: 10): {verdict(light)}")
    return 0 if in_time and light else 1


if __name__ == "__main__":
    sys.exit(main())

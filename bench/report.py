"""The numbers of a run: medians, ratios, losses, and whether the bars are met."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.crowd import Sample
from bench.subjects import Verb
from bench.usage import Usage

OURS, BASELINE = "bot-bottle", "baseline"
BOTH = (OURS, BASELINE)
SMALL_CROWD_BAR, LARGE_CROWD_BAR, IDLE_BAR = 10.0, 30.0, 50.0


@dataclass(frozen=True)
class Bar:
    what: str
    measured: float
    needed: float

    @property
    def met(self) -> bool:
        return self.measured >= self.needed

    def __str__(self) -> str:
        verdict = "bar met" if self.met else "bar not met"
        return (
            f"{self.what}: {_fraction(self.measured)} of the baseline (bar: 1/{self.needed:.0f}): {verdict}"
        )


@dataclass
class Report:
    sizes: Sequence[int]
    idle_at: int
    held: int
    steady: dict[tuple[str, int], list[list[Sample]]] = field(default_factory=lambda: defaultdict(list))
    lost_before_deciding: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    burst: dict[str, list[Sample]] = field(default_factory=dict)
    idle: dict[str, list[Usage]] = field(default_factory=lambda: defaultdict(list))
    throughput: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def lost(self, name: str) -> int:
        """Calls of the whole run that got no answer, or not their own."""
        rounds = [samples for (owner, _), found in self.steady.items() if owner == name for samples in found]
        return sum(map(_lost, [*rounds, self.burst[name]])) + self.lost_before_deciding[name]

    def bars(self) -> list[Bar]:
        found = []
        for size in self.sizes:
            needed = LARGE_CROWD_BAR if size == max(self.sizes) else SMALL_CROWD_BAR
            for verb, kind in JUDGED.items():
                ratio = self._ratio(size, verb, kind)
                found.append(Bar(f"p50 {verb.status} → answered, {size} waiting", ratio, needed))
        idle = self._idle(BASELINE).cpu_percent / max(self._idle(OURS).cpu_percent, 0.01)
        return [*found, Bar(f"idle CPU, {self.idle_at} waiting", idle, IDLE_BAR)]

    def all_bars_met(self) -> bool:
        return all(bar.met for bar in self.bars()) and self.lost(OURS) == 0

    def markdown(self) -> str:
        lost = self.lost(OURS)
        verdicts = [
            *map(str, self.bars()),
            f"lost or wrong answers of {OURS}: {lost}: bar {'not ' if lost else ''}met",
        ]
        sections = [self._latency_table(), self._usage_table(), self._burst_table(), _bullets(verdicts)]
        return "\n\n".join(sections)

    def as_dict(self) -> dict[str, Any]:
        return {
            "latency_ms": [
                {"server": name, "waiting": size, "verb": str(verb), **_figures(samples)}
                for (name, size), rounds in self.steady.items()
                for verb in Verb
                for samples in [_of(verb, _pooled(rounds))]
            ],
            "idle": {name: [vars(usage) for usage in found] for name, found in self.idle.items()},
            "burst": {name: {"held": self.held, **_figures(found)} for name, found in self.burst.items()},
            "lost": {name: self.lost(name) for name in BOTH},
            "tools_list_per_second": dict(self.throughput),
            "bars": [{**vars(bar), "met": bar.met} for bar in self.bars()],
        }

    def _latency_table(self) -> str:
        head = [
            "waiting",
            "server",
            "decided → answered p50",
            "p99",
            "of the baseline",
            "of it once in force",
        ]
        head += ["action → answered p50", "of the baseline"]
        rows: list[list[object]] = []
        for size in self.sizes:
            rows.append([size, BASELINE, *self._latencies(_pooled(self.steady[BASELINE, size]))])
            for verb in Verb:
                samples = _of(verb, _pooled(self.steady[OURS, size]))
                ratios = [_fraction(self._ratio(size, verb, kind)) for kind in (after_decision, after_action)]
                rows.append([size, f"{OURS}, {verb}", *self._latencies(samples, *ratios)])
        return table(head, rows)

    def _latencies(self, samples: Sequence[Sample], decided: str = "1", action: str = "1") -> list[str]:
        figures = {key: f"{value:.1f} ms" for key, value in _figures(samples).items()}
        after_it = [figures["decided_p50"], figures["decided_p99"], decided, figures["settled_p50"]]
        return [*after_it, figures["action_p50"], action]

    def _ratio(self, size: int, verb: Verb, kind: Callable[[Sample], float]) -> float:
        """How many times longer the baseline takes. It treats both verbs the same."""
        baseline, ours = _pooled(self.steady[BASELINE, size]), _of(verb, _pooled(self.steady[OURS, size]))
        return _p50(map(kind, _answered(baseline))) / _p50(map(kind, _answered(ours)))

    def _usage_table(self) -> str:
        head = [f"{self.idle_at} waiting, idle", "CPU (of one core)", "memory", "threads", "tools/list"]
        rows = []
        for name in BOTH:
            usage, rate = self._idle(name), median(self.throughput[name])
            processor, memory = f"{usage.cpu_percent:.2f} %", f"{usage.megabytes:.0f} MB"
            rows.append([name, processor, memory, usage.threads, f"{rate:.0f} /s"])
        return table(head, rows)

    def _burst_table(self) -> str:
        held = f"{self.held} waiting, all decided"
        head = [held, "answered", "lost or wrong", "decided → answered p50", "p99", "took"]
        rows = []
        for name in BOTH:
            samples = self.burst[name]
            lost, figures = _lost(samples), _figures(samples)
            took = max(s.answered or 0 for s in samples) - min(s.started for s in samples)
            latencies = [f"{figures[key]:.1f} ms" for key in ("decided_p50", "decided_p99")]
            missing = lost + self.held - len(samples)
            rows.append([name, self.held - missing, missing, *latencies, f"{took:.1f} s"])
        return table(head, rows)

    def _idle(self, name: str) -> Usage:
        found = self.idle[name]
        return Usage(
            median(usage.cpu_percent for usage in found),
            median(usage.megabytes for usage in found),
            max(usage.threads for usage in found),
        )


def after_decision(sample: Sample) -> float:
    return 1000 * ((sample.answered or 0) - sample.moments.decided)


def after_settling(sample: Sample) -> float:
    return 1000 * ((sample.answered or 0) - sample.moments.settled)


def after_action(sample: Sample) -> float:
    return 1000 * ((sample.answered or 0) - sample.started)


# From which moment the bars count. An approval is answered only once the proxy serves the new table; the
# baseline applies nothing, so what is compared is the waking.
JUDGED = {Verb.APPROVE: after_settling, Verb.REJECT: after_decision}
KINDS = {"decided": after_decision, "settled": after_settling, "action": after_action}


def _figures(samples: Sequence[Sample]) -> dict[str, Any]:
    answered = _answered(samples)
    figures: dict[str, Any] = {"decisions": len(samples), "lost": _lost(samples)}
    for name, kind in KINDS.items():
        for percent in (50, 99):
            figures[f"{name}_p{percent}"] = round(percentile(map(kind, answered), percent), 3)
    return figures


def _of(verb: Verb, samples: Iterable[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.verb is verb]


def _answered(samples: Iterable[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.answered is not None]


def _lost(samples: Iterable[Sample]) -> int:
    return sum(not sample.right for sample in samples)


def _pooled(rounds: Iterable[Sequence[Sample]]) -> list[Sample]:
    return [sample for samples in rounds for sample in samples]


def percentile(values: Iterable[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else float("nan")


def _p50(values: Iterable[float]) -> float:
    return percentile(values, 50)


def _fraction(times: float) -> str:
    return f"1/{times:.0f}" if times >= 10 else f"1/{times:.1f}"


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def _bullets(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)

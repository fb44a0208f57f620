"""A rebuild's way through its phases, what stops it, and what the agent is told at each. No engine needed."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.test import Client
from django.utils import timezone

from botbottle.backends import image_builders
from botbottle.backends.base import Life
from botbottle.core.plan_types import BackendError, Plan
from botbottle.dockerfiles.parse import digest_of
from botbottle.launch import canary, journal, plan_cache
from botbottle.manifest import reader as manifests
from botbottle.models import Bottle
from egress.models import TrafficRecord
from egress.tables import homes
from supervise import events
from supervise.bottles import build_log, images, lifecycle, reconcile
from supervise.bottles import rebuild as rebuilding
from supervise.bottles.images import Image, Phase
from supervise.bottles.lifecycle import NotStarted
from supervise.errors import NotPermitted
from supervise.models import AuditEvent, Decision, Rebuild
from supervise.proposals import apply, queries
from tests.support.proposals import ask, ask_image

pytestmark = pytest.mark.django_db
TEXT = "FROM agents:1\nRUN install newtool\n"
MANIFEST = "backend: docker\nimage: agents:1\n"


@dataclass
class Stage:
    """Stands in for engine and sandboxes, and writes down what is done to them."""

    alive: bool = True
    fails: dict[str, str | Exception] = field(default_factory=dict)  # by step, with the reason
    done: list[str] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)

    def _do(self, step: str) -> None:
        self.done.append(step)
        reason = self.fails.get(step)
        if isinstance(reason, Exception):
            raise reason
        if reason is not None:
            raise (NotStarted if step.startswith("start") else BackendError)(reason)

    def build(self, text: str, tell: Callable[[str], None], *, image: str) -> str:
        tell("Step 1/2 : FROM agents:1")
        self._do("build")
        return f"built:{digest_of(text)[:4]}"

    def compare(self, _text: str, _image: str, _seconds: float) -> list[str]:
        return []

    def verify(self, image: str, digest: str) -> None:
        self._do("verify")

    def retain(self, plan: Plan) -> str:
        return f"kept:{plan.image}"

    def prune(self, kept: set[str]) -> None:
        self.kept = kept

    def clear(self) -> None:
        self._do("clear")

    def life(self, _slug: str) -> Life:
        return Life(self.alive)

    def start(self, _slug: str, *, image: Image | None = None, **_more: Any) -> None:
        Bottle.objects.update(image=image.name if image else "the one in force")
        self._do(f"start {image.name if image else 'the one in force'}")
        self.alive = True

    def stop(self, _slug: str, **_more: Any) -> None:
        self._do("stop")
        self.alive = False


@pytest.fixture
def home(settings: Any, tmp_path: Path) -> Path:
    settings.BOTTLE_HOME, settings.BOTTLE_MANIFESTS = tmp_path, tmp_path / "bottles"
    return tmp_path


@pytest.fixture
def bottle(home: Path, agent_a: Bottle) -> Bottle:
    Bottle.objects.update(manifest=MANIFEST, backend="docker", image="agents:1", dockerfile="FROM agents:1\n")
    directory = homes.bottle_directory(agent_a)
    (home / "bottles" / f"{agent_a.slug}.yaml").write_text(MANIFEST)
    journal.append(directory, journal.STARTED, who="olivia")
    agent_a.refresh_from_db()
    return agent_a


@pytest.fixture
def stage(bottle: Bottle, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage()
    monkeypatch.setattr(image_builders, "images", lambda *_: stage)
    monkeypatch.setattr(reconcile, "backend_of", lambda _: stage)
    monkeypatch.setattr(reconcile, "reconcile_bottle", lambda bottle: bottle)
    monkeypatch.setattr(lifecycle, "start", stage.start)
    monkeypatch.setattr(lifecycle, "stop", stage.stop)
    monkeypatch.setattr(canary, "check", lambda plan, tell: stage._do(f"canary {plan.image}"))
    monkeypatch.setattr(canary, "inspect_workspace", lambda plan, archive: {"branch": "main", "changes": 0})

    def plan(slug: str, *, image: Image | None = None, **_: Any) -> tuple[manifests.Manifest, Plan]:
        manifest = manifests.load(lifecycle.manifest_path(slug))
        image = image or images.in_force(slug, manifest)
        directory = str(homes.bottle_directory(bottle))
        return manifest, Plan(slug, "docker", directory, image=image.name or manifest.image)

    monkeypatch.setattr(lifecycle, "plan", plan)
    monkeypatch.setattr(images, "launch", lambda rebuild: stage.done.append(f"launch {rebuild.pk}"))
    return stage


@pytest.fixture
def rebuild(bottle: Bottle, stage: Stage, approve: Callable[..., Decision]) -> Rebuild:
    decision = approve(ask_image(bottle, TEXT))
    return Rebuild.objects.get(decision=decision)


def told(rebuild: Rebuild) -> str:
    assert rebuild.decision is not None
    return queries.outcome(rebuild.decision.proposal_id).explanation


def performed(rebuild: Rebuild) -> Rebuild:
    rebuilding.perform(rebuild.pk)
    rebuild.refresh_from_db()
    return rebuild


# --- the way


def test_an_approval_queues_a_rebuild_of_exactly_what_was_approved(rebuild: Rebuild, bottle: Bottle) -> None:
    assert rebuild.decision is not None
    assert rebuild.decision.applied == Decision.Applied.WAITING
    assert (rebuild.phase, rebuild.dockerfile, rebuild.digest) == ("queued", TEXT, digest_of(TEXT))
    bottle.refresh_from_db()
    assert bottle.dockerfile == "FROM agents:1\n", "until it is live, the old one is in force"
    apply.retry_unfinished()
    rebuild.decision.refresh_from_db()
    assert rebuild.decision.applied == Decision.Applied.WAITING, "publishing routes says nothing about it"


def test_for_the_agent_it_is_pending_until_the_replacement_is_live(rebuild: Rebuild, stage: Stage) -> None:
    assert rebuild.decision is not None

    def status() -> str:
        return queries.outcome(rebuild.decision.proposal_id).status_for_agent

    assert status() == "pending"
    performed(rebuild)
    assert status() == "approved"


def test_it_is_built_tried_verified_and_swapped_in(rebuild: Rebuild, stage: Stage, bottle: Bottle) -> None:
    plan_cache.write_command(Plan(bottle.slug, "docker", str(homes.bottle_directory(bottle)), command=("x",)))
    image = f"built:{digest_of(TEXT)[:4]}"
    assert performed(rebuild).phase == Phase.LIVE
    assert stage.done == ["build", f"canary {image}", "verify", "verify", "stop", f"start {image}"]
    assert (rebuild.image, rebuild.previous_image) == (image, "kept:agents:1")
    assert rebuild.previous_dockerfile == "FROM agents:1\n"
    assert rebuild.workspace == {"branch": "main", "changes": 0}
    bottle.refresh_from_db()
    assert bottle.dockerfile == TEXT
    shown = homes.bottle_directory(bottle) / "current-config" / "Dockerfile"
    assert (shown.read_text(), shown.stat().st_mode & 0o777) == (TEXT, 0o644)
    assert rebuild.decision is not None
    rebuild.decision.refresh_from_db()
    assert rebuild.decision.applied == Decision.Applied.LIVE
    assert "image replaced" in AuditEvent.objects.values_list("action", flat=True)
    assert stage.kept == {image, "kept:agents:1"}


def test_a_stopped_bottle_gets_its_image_and_stays_stopped(rebuild: Rebuild, stage: Stage) -> None:
    stage.alive = False
    assert performed(rebuild).phase == Phase.LIVE
    assert not [step for step in stage.done if step.startswith(("start", "stop"))]


@pytest.mark.parametrize("step", ["build", "canary", "verify"])
def test_what_fails_before_the_swap_touches_no_bottle(rebuild: Rebuild, stage: Stage, step: str) -> None:
    image = f"built:{digest_of(TEXT)[:4]}"
    stage.fails = {step if step != "canary" else f"canary {image}": "no such thing.\nThe log: …"}
    assert performed(rebuild).phase == Phase.FAILED
    assert rebuild.problem == "no such thing"
    assert not [done for done in stage.done if done.startswith(("start", "stop"))]
    assert rebuild.decision is not None
    rebuild.decision.refresh_from_db()
    assert (rebuild.decision.applied, rebuild.decision.apply_error) == ("failed", "no such thing")


@pytest.mark.parametrize(
    ("reason", "told"), [("it ended at once", "it ended"), (OperationalError("locked"), "OperationalError")]
)
def test_a_replacement_that_does_not_start_brings_the_old_one_back(
    rebuild: Rebuild, stage: Stage, reason: str | Exception, told: str
) -> None:
    image = f"built:{digest_of(TEXT)[:4]}"
    stage.fails = {f"start {image}": reason}
    assert (performed(rebuild).phase, told in rebuild.problem) == (Phase.FAILED, True)
    assert stage.done[-3:] == ["stop", f"start {image}", "start the one in force"]
    assert stage.alive and images.newest_live(rebuild.bottle.slug) is None


def test_an_old_one_that_stops_but_not_well_is_started_again(rebuild: Rebuild, stage: Stage) -> None:
    def stop(_slug: str, **_: Any) -> None:
        stage.alive = False
        raise OperationalError("locked")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lifecycle, "stop", stop)
        assert performed(rebuild).phase == Phase.FAILED
    assert (stage.alive, stage.done[-1]) == (True, "start the one in force")


@pytest.mark.parametrize("alive", [True, False])
def test_a_replacement_that_cannot_go_live_is_taken_back(
    rebuild: Rebuild, stage: Stage, bottle: Bottle, monkeypatch: pytest.MonkeyPatch, alive: bool
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OperationalError("locked")

    stage.alive = alive
    kept = homes.bottle_directory(bottle) / plan_cache.PLAN_FILE
    kept.parent.mkdir(parents=True)
    kept.write_text("a plan with the new image")
    with monkeypatch.context() as patched:
        patched.setattr(apply, "mark_applied", refuse)
        with pytest.raises(OperationalError):  # neither can it be told
            performed(rebuild)
    assert (stage.alive, Rebuild.objects.get().phase) == (alive, Phase.SWAPPING)
    assert stage.done[-2:] == (["stop", "start the one in force"] if alive else ["verify", "verify"])
    assert not kept.exists()
    if not alive:
        shown = homes.bottle_directory(bottle) / "current-config" / "Dockerfile"
        assert shown.read_text() == "FROM agents:1\n"
    assert performed(rebuild).phase == Phase.FAILED


def test_an_error_of_our_own_fails_closed(
    rebuild: Rebuild, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "build", lambda *_, **_more: 1 / 0)
    assert performed(rebuild).phase == Phase.FAILED
    assert "ZeroDivisionError" in rebuild.problem
    assert stage.done == []


# --- what is killed, and who is next


@pytest.mark.parametrize("phase", ["snapshot", "building", "canary"])
def test_a_killed_one_failed_and_the_bottle_never_noticed(rebuild: Rebuild, stage: Stage, phase: str) -> None:
    Rebuild.objects.update(phase=phase)
    assert (performed(rebuild).phase, "interrupted" in rebuild.problem) == (Phase.FAILED, True)
    assert stage.done == ["clear"]


def test_a_replacement_that_runs_goes_live_though_its_process_was_killed(
    rebuild: Rebuild, stage: Stage, bottle: Bottle
) -> None:
    Rebuild.objects.update(
        phase=Phase.SWAPPING, was_running=True, image="built:new", made_for=made_for(bottle)
    )
    Bottle.objects.update(image="built:new")
    assert (performed(rebuild).phase, rebuild.problem) == (Phase.LIVE, "")
    assert stage.done == ["clear"]
    bottle.refresh_from_db()
    assert bottle.dockerfile == TEXT
    found = images.in_force(bottle.slug, manifests.load(lifecycle.manifest_path(bottle.slug)))
    assert found == Image("built:new", TEXT), "and the next start goes on with it"
    assert "image replaced" in AuditEvent.objects.values_list("action", flat=True)


def made_for(bottle: Bottle) -> str:
    return images.source_of(manifests.load(lifecycle.manifest_path(bottle.slug)))


@pytest.mark.parametrize(("alive", "started"), [(False, ["start the one in force"]), (True, [])])
def test_one_killed_in_the_swap_before_that_leaves_the_old_one_running(
    rebuild: Rebuild, stage: Stage, alive: bool, started: list[str]
) -> None:
    Rebuild.objects.update(phase=Phase.SWAPPING, was_running=True, image="built:new")
    stage.alive = alive
    assert performed(rebuild).phase == Phase.FAILED
    assert stage.done == ["clear", *started]
    assert stage.alive


def test_rebuilds_of_a_bottle_go_one_after_the_other(
    rebuild: Rebuild, stage: Stage, bottle: Bottle, approve: Callable[..., Decision]
) -> None:
    second = Rebuild.objects.get(decision=approve(ask_image(bottle, "FROM agents:2\n")))
    assert performed(second).phase == Phase.QUEUED
    lock = homes.bottle_directory(bottle) / "run" / "rebuild.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert performed(rebuild).phase == Phase.QUEUED
        rebuilding.maintain()
    assert stage.done == [], "somebody is at it"
    rebuilding.maintain()
    assert stage.done == [f"launch {rebuild.pk}"]
    performed(rebuild)
    assert performed(second).phase == Phase.LIVE
    assert second.previous_dockerfile == TEXT


def test_the_caretaker_gives_up_what_never_begins_and_leaves_other_homes_alone(
    rebuild: Rebuild, stage: Stage, bottle: Bottle
) -> None:
    Rebuild.objects.update(attempts=rebuilding.MOST_ATTEMPTS)
    journal.forget(homes.bottle_directory(bottle))
    rebuilding.maintain()
    assert Rebuild.objects.get().phase == Phase.QUEUED, "of another home"
    Bottle.objects.update(state=Bottle.State.DELETED)
    rebuilding.maintain()
    assert Rebuild.objects.get().problem == "the bottle was deleted"
    Bottle.objects.update(state=Bottle.State.RUNNING)
    Rebuild.objects.update(phase=Phase.QUEUED)
    journal.append(homes.bottle_directory(bottle), journal.STARTED, who="olivia")
    rebuilding.maintain()
    assert "ended 5 times" in Rebuild.objects.get().problem
    assert stage.done == []


def test_an_image_approved_elsewhere_is_built_where_the_bottle_is(
    rebuild: Rebuild,
    settings: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Any,
) -> None:
    called: list[str] = []
    monkeypatch.setattr(events, "_send", lambda event: called.extend(event["groups"]))
    home, settings.BOTTLE_HOME = homes.home_id(), tmp_path / "another"
    settings.BOTTLE_HOME.mkdir()
    with django_capture_on_commit_callbacks(execute=True):
        LAUNCH(rebuild)
    rebuild.refresh_from_db()
    assert (rebuild.attempts, called) == (0, [events.home_group(home)])


def test_one_whose_process_is_being_started_is_neither_started_again_nor_given_up(
    rebuild: Rebuild, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(images, "launch", LAUNCH)
    monkeypatch.setattr(images.subprocess, "Popen", lambda command, **_: started.append(command) or Process())
    for _ in range(2 * rebuilding.MOST_ATTEMPTS):  # rounds of several workers
        rebuilding.maintain()
        images.launch(rebuild)
    rebuild.refresh_from_db()
    assert (len(started), rebuild.attempts, rebuild.phase) == (1, 1, Phase.QUEUED)
    Rebuild.objects.update(launched_at=timezone.now() - 2 * images.STARTING)
    rebuilding.maintain()
    assert len(started) == 2, "it was in vain"
    Rebuild.objects.update(attempts=rebuilding.MOST_ATTEMPTS)
    rebuilding.maintain()
    assert Rebuild.objects.get().phase == Phase.QUEUED, "the last of them may still begin"
    images.has_started(rebuild)
    rebuilding.maintain()
    assert Rebuild.objects.get().phase == Phase.FAILED


LAUNCH = images.launch


class Process:
    def wait(self) -> int:
        return 0


def test_one_that_began_meanwhile_is_not_given_up(
    rebuild: Rebuild, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = rebuilding._lock

    @contextmanager
    def held_late(bottle: Bottle) -> Iterator[None]:
        with held(bottle):
            Rebuild.objects.update(phase=Phase.LIVE)
            yield

    Rebuild.objects.update(attempts=rebuilding.MOST_ATTEMPTS)
    monkeypatch.setattr(rebuilding, "_lock", held_late)
    rebuilding.maintain()
    assert Rebuild.objects.get().phase == Phase.LIVE


# --- which image is in force


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        (MANIFEST + "command: [sleep]\n", True),
        ("backend: docker\nimage: agents:2\n", False),
        ("backend: local\n", False),
        (MANIFEST + "dockerfile: Dockerfile\n", False),
    ],
)
def test_the_manifests_own_image_counts_again_once_it_is_changed(
    rebuild: Rebuild, bottle: Bottle, changed: str, counts: bool
) -> None:
    performed(rebuild)
    path = lifecycle.manifest_path(bottle.slug)
    (path.parent / "Dockerfile").write_text("FROM other\n")
    path.write_text(changed)
    found = images.in_force(bottle.slug, manifests.load(path))
    assert (found.name == rebuild.image) is counts
    assert (found.dockerfile == TEXT) is counts


def test_going_back_and_what_cannot_be(rebuild: Rebuild, stage: Stage, bottle: Bottle) -> None:
    with pytest.raises(rebuilding.NotRebuilt, match="no rebuilt image"):
        rebuilding.roll_back(bottle.slug, author="olivia")
    performed(rebuild)
    back = rebuilding.roll_back(bottle.slug, author="olivia")
    with pytest.raises(rebuilding.NotRebuilt, match="is being rebuilt"):
        rebuilding.roll_back(bottle.slug, author="olivia")
    stage.done.clear()
    assert performed(back).phase == Phase.LIVE
    assert stage.done == ["stop", "start kept:agents:1"]
    bottle.refresh_from_db()
    assert bottle.dockerfile == "FROM agents:1\n"
    assert "gone back to the image before" in told(rebuild)
    with pytest.raises(rebuilding.NotRebuilt, match="no rebuilt image"):
        rebuilding.roll_back(bottle.slug, author="olivia")


def test_a_failed_one_is_tried_again_and_a_live_one_is_not(rebuild: Rebuild, stage: Stage) -> None:
    stage.fails = {"build": "no network"}
    performed(rebuild)
    assert rebuild.decision is not None
    second = rebuilding.again(rebuild.decision, author="olivia")
    assert (second.digest, told(rebuild)) == (rebuild.digest, told(second))
    assert "waits for its turn" in told(second)
    with pytest.raises(rebuilding.NotRebuilt):
        rebuilding.again(rebuild.decision, author="olivia")
    stage.fails = {}
    assert performed(second).phase == Phase.LIVE
    with pytest.raises(rebuilding.NotRebuilt):
        rebuilding.again(rebuild.decision, author="olivia")


# --- what is told


@pytest.mark.parametrize(
    ("phase", "sentence"),
    [
        (Phase.QUEUED, "waits for its turn"),
        (Phase.SNAPSHOT, "step 1 of 4"),
        (Phase.BUILDING, "step 2 of 4"),
        (Phase.CANARY, "step 3 of 4"),
        (Phase.SWAPPING, "step 4 of 4"),
        (Phase.LIVE, "The replacement is live"),
        (Phase.FAILED, "Approved, but not live: it broke. The bottle keeps its image."),
    ],
)
def test_the_agent_is_told_the_truth_in_every_phase(rebuild: Rebuild, phase: Phase, sentence: str) -> None:
    Rebuild.objects.update(phase=phase, problem="it broke", ended_at=timezone.now())
    assert sentence in told(rebuild)
    assert ("not live" in told(rebuild)) is (phase != Phase.LIVE)


def test_a_later_image_takes_the_place(
    rebuild: Rebuild, bottle: Bottle, approve: Callable[..., Decision]
) -> None:
    performed(rebuild)
    performed(Rebuild.objects.get(decision=approve(ask_image(bottle, "FROM agents:2\n"))))
    assert "a later change of the image" in told(rebuild)


def test_a_failure_names_refused_hosts_and_shows_the_end_of_the_log_without_its_tricks(
    rebuild: Rebuild, stage: Stage, bottle: Bottle
) -> None:
    stage.fails = {"build": "\x1b[31mno\u202e network"}
    performed(rebuild)
    assert rebuild.build_started_at is not None and rebuild.build_ended_at is not None
    for host, moment in (("early.example", -1), ("index.example", 0), ("index.example", 0)):
        TrafficRecord.objects.create(
            bottle=bottle, at=rebuild.build_started_at + timedelta(hours=moment), method="CONNECT",
            scheme="https", host=host, path="", table_version=1, verdict="refused", reason="no_route",
            status=403, bytes_out=0, bytes_in=0, duration_ms=1, ask={"host": host},
        )  # fmt: skip
    text = told(rebuild)
    assert "refused index.example: ask" in text and "early.example" not in text
    assert "Step 1/2 : FROM agents:1" in text
    assert "\x1b" not in text and "\u202e" not in text


def test_a_log_is_bounded_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_log, "MOST", 10_000)
    log = build_log.Log(tmp_path / "rebuilds" / "1.log")
    for _ in range(1000):
        log("x" * 5000)
    log.close()
    path = tmp_path / "rebuilds" / "1.log"
    assert path.stat().st_size < 13_000
    assert path.stat().st_mode & 0o777 == 0o600
    assert "rest of the log is cut off" in path.read_text()


# --- on the console


def test_only_who_decides_may_change_the_image(rebuild: Rebuild, operator: User, viewer: User) -> None:
    assert rebuilding.check_permission(operator, rebuild.bottle) == operator.get_username()
    with pytest.raises(NotPermitted):
        rebuilding.check_permission(viewer, rebuild.bottle)


def browser_of(user: User) -> Client:
    User.objects.filter(pk=user.pk).update(is_staff=True)
    browser = Client()
    browser.force_login(User.objects.get(pk=user.pk))
    return browser


@pytest.mark.parametrize(("problem", "button"), [("no", "again"), ("", "roll-back")])
@pytest.mark.parametrize("who", ["operator", "viewer"])
def test_the_page_shows_the_log_and_the_button_to_those_who_may(
    rebuild: Rebuild, request: pytest.FixtureRequest, problem: str, button: str, who: str
) -> None:
    stage: Stage = request.getfixturevalue("stage")
    stage.fails = {"build": problem} if problem else {}
    performed(rebuild)
    assert rebuild.decision is not None
    page = f"/proposals/{rebuild.decision.proposal_id}/"
    browser = browser_of(request.getfixturevalue(who))
    for address in (page, f"{page}rebuild/"):
        shown = browser.get(address).content.decode()
        assert "Step 1/2 : FROM agents:1" in shown
        assert (f"{page}rebuild/{button}" in shown) is (who == "operator")
    browser.post(f"{page}rebuild/{button}")
    launched = [step for step in stage.done if step.startswith("launch")]
    assert (len(launched), Rebuild.objects.count()) == ((1, 2) if who == "operator" else (0, 1))


def test_another_proposals_page_has_no_rebuild(bottle: Bottle, operator: User) -> None:
    browser = browser_of(operator)
    for proposal in (ask(bottle), ask_image(bottle)):
        assert browser.get(f"/proposals/{proposal.pk}/rebuild/").status_code == 404
        assert browser.post(f"/proposals/{proposal.pk}/rebuild/again").status_code == 404

"""What the engine has under the names in pending Dockerfiles: told in time, or said not to be known."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from botbottle.backends import image_builders
from botbottle.backends.base import Unavailable
from botbottle.core.plan_types import BackendError
from botbottle.models import Bottle
from egress.models import Publication
from supervise.bottles import image_drift, images
from supervise.console import queue_query
from supervise.console.cards import card_of
from supervise.console.queue_query import Filter
from supervise.errors import StaleReview
from supervise.models import Proposal, Rebuild
from supervise.proposals import decisions, queries
from supervise.proposals.review import find_facts
from supervise.proposals.staleness import changed_since, fingerprint
from tests.support.proposals import ask, ask_image, seen
from tests.support.threads import together
from tests.support.timeouts import wait_until

pytestmark = pytest.mark.django_db
TEXT = "FROM agents:1\nRUN install newtool\n"
MOVED = "moved tag: agents:1 is another image than it was: 2, so far 1"
AWAY = "The Docker engine does not answer."


@dataclass
class Engine:
    """Stands in for the backend's way to one."""

    told: list[str] = field(default_factory=list)
    error: Exception | None = None
    seconds: float = 0.0
    silent: threading.Event | None = None
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)

    def images(self, _backend: str, _home: Path, slug: str) -> Any:
        @dataclass
        class Images:
            compare: Callable[..., list[str]]

        return Images(lambda text, image, _seconds: self._compare(slug, text, image))

    def _compare(self, slug: str, text: str, image: str) -> list[str]:
        self.asked.append((slug, text, image))
        self.threads.add(threading.current_thread().name)
        if self.silent is not None:
            self.silent.wait(30)
        time.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return list(self.told)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    engine = Engine()
    monkeypatch.setattr(image_builders, "images", engine.images)
    monkeypatch.setattr(images, "launch", lambda _: None)
    yield engine
    if engine.silent is not None:
        engine.silent.set()
    for thread in threading.enumerate():
        if thread.name == "named-images":
            thread.join(10)


def runnable(bottle: Bottle, backend: str = "docker") -> Bottle:
    Bottle.objects.filter(pk=bottle.pk).update(
        manifest="backend: docker\n", backend=backend, image="agents:1", dockerfile="FROM agents:1\n"
    )
    bottle.refresh_from_db()
    return bottle


@pytest.fixture
def bottle(agent_a: Bottle) -> Bottle:
    return runnable(agent_a)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Time passes, for what is kept."""

    def pass_by(seconds: float) -> None:
        monkeypatch.setattr(image_drift, "monotonic", lambda: time.monotonic() + seconds)

    return pass_by


def looked(proposal: Proposal) -> Any:
    return queries.review_of(queries.get_proposal(proposal.pk))


def test_a_moved_tag_is_a_warning_and_a_finding_of_high_risk(
    bottle: Bottle, engine: Engine, later: Callable[[float], None]
) -> None:
    proposal = ask_image(bottle, TEXT)
    clean = looked(proposal)
    assert (any("moved" in warning for warning in clean.warnings), clean.notes) == (False, ())
    engine.told = [MOVED]
    later(60)
    shown = looked(proposal)
    assert shown.warnings[0] == MOVED
    assert MOVED in shown.risk.warnings
    assert shown.seen_digest != clean.seen_digest
    assert engine.asked == [(bottle.slug, TEXT, "agents:1")] * 2
    assert engine.threads == {"named-images"}


@pytest.mark.parametrize("path", ["/", "/proposals/{pk}/", "/queue/cards?id={pk}", "/api/proposals/{pk}/"])
def test_every_page_shows_it(
    bottle: Bottle, engine: Engine, later: Callable[[float], None], operator: User, path: str
) -> None:
    engine.told = [MOVED]
    proposal, browser = ask_image(bottle, TEXT), Client()
    browser.force_login(operator)
    assert MOVED in browser.get(path.format(pk=proposal.pk)).content.decode()
    engine.error = Unavailable(AWAY)
    later(60)
    page = browser.get(path.format(pk=proposal.pk)).content.decode()
    assert "moved tag" not in page
    assert f"could not be compared with the engine: {AWAY}" in page


def test_an_edit_is_compared_too(bottle: Bottle, engine: Engine) -> None:
    engine.told = [MOVED]
    edited = queries.review_of(ask_image(bottle, "FROM agents:2\n"), edited={"dockerfile": TEXT})
    assert MOVED in edited.warnings
    assert [text for _, text, _ in engine.asked] == ["FROM agents:2\n", TEXT]


def test_an_answer_counts_for_a_while(bottle: Bottle, engine: Engine, later: Callable[[float], None]) -> None:
    proposal = ask_image(bottle, TEXT)
    for _ in range(3):
        looked(proposal)
    assert len(engine.asked) == 1
    later(image_drift.FRESH_SECONDS + 1)
    looked(proposal)
    assert len(engine.asked) == 2


def test_another_image_in_force_is_another_question(bottle: Bottle, engine: Engine) -> None:
    proposal = ask_image(bottle, TEXT)
    looked(proposal)
    for image, ended in (("built:2", 0), ("built:1", -60)):
        Rebuild.objects.create(
            bottle=bottle, author="o", phase="live", image=image, dockerfile="FROM x\n",
            ended_at=timezone.now() + timedelta(seconds=ended),
        )  # fmt: skip
    Bottle.objects.update(dockerfile="FROM x\n")
    looked(proposal)
    assert [image for _, _, image in engine.asked] == ["agents:1", "built:2"]
    Bottle.objects.update(dockerfile="FROM agents:1\n")  # its manifest counts again
    looked(proposal)
    assert len(engine.asked) == 2


def test_what_is_kept_is_bounded(bottle: Bottle, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_drift, "MOST_KEPT", 3)
    proposal = ask_image(bottle, TEXT)
    for number in range(6):
        proposal.payload = {"dockerfile": f"FROM agents:{number}\n"}
        image_drift.check_images([proposal])
    assert len(image_drift._engine._said) == 3
    image_drift.check_images([proposal])
    assert len(engine.asked) == 6, "the newest are kept"


def test_an_engine_that_is_away_is_said_to_be_and_left_alone(
    bottle: Bottle, engine: Engine, later: Callable[[float], None]
) -> None:
    engine.error = Unavailable(AWAY)
    first, second = ask_image(bottle, TEXT), ask_image(bottle, "FROM agents:2\n")
    for proposal in (first, second, first):
        assert looked(proposal).notes == (
            f"the images it names could not be compared with the engine: {AWAY}",
        )
    assert len(engine.asked) == 1
    engine.error = None
    later(image_drift.REST_SECONDS + 1)
    assert looked(first).notes == ()


def test_a_page_does_not_wait_for_a_silent_engine(
    bottle: Bottle, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_drift, "PAGE_SECONDS", 0.2)
    engine.silent = threading.Event()
    proposals = [ask_image(bottle, f"FROM agents:{number}\n") for number in range(5)]
    for _ in range(3):
        for shown in queries.reviews_of(proposals):
            assert image_drift.TOO_LATE in shown.notes[0]
    assert len(engine.asked) == 1, "one asks, and the others do not wait for long"


def test_two_pages_at_the_same_time_ask_once(engine: Engine) -> None:
    engine.seconds, engine.told = 0.2, [MOVED]
    question = image_drift._Question(1, "docker", "agent-a", "agents:1", "a digest")
    answers = together([lambda: image_drift._engine.answers({question: TEXT}, again=False)] * 2)
    assert answers == [{question: image_drift.Names((MOVED,))}] * 2
    assert len(engine.asked) == 1


def test_a_queue_waits_once_however_many_cards_it_has(
    bottle: Bottle, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not answered in time is asked on, for the page's next look."""
    monkeypatch.setattr(image_drift, "PAGE_SECONDS", 0.2)
    monkeypatch.setattr(image_drift, "ROUND_SECONDS", 60.0)
    engine.seconds, engine.told = 0.2, [MOVED]
    for number in range(8):
        ask_image(bottle, f"FROM agents:1\nRUN {number}\n")
    shown = queue_query.page_of(Filter()).reviews
    assert any(image_drift.TOO_LATE in note for review in shown for note in review.notes)
    wait_until(lambda: not any(review.notes for review in queue_query.page_of(Filter()).reviews))
    assert len(engine.asked) == 8


def test_the_number_of_queries_does_not_depend_on_the_number_of_bottles(
    bottle: Bottle, agent_b: Bottle, engine: Engine, django_assert_num_queries: Any
) -> None:
    proposals = [ask_image(each, TEXT) for each in (bottle, runnable(agent_b))]
    with django_assert_num_queries(2):
        image_drift.check_images(proposals)
    assert [slug for slug, _, _ in engine.asked] == [bottle.slug, agent_b.slug]


def test_an_error_of_our_own_breaks_no_page(bottle: Bottle, engine: Engine) -> None:
    engine.error = ZeroDivisionError()
    assert "ZeroDivisionError" in looked(ask_image(bottle, TEXT)).notes[0]


def test_a_text_that_the_engine_says_nothing_of_is_no_reason_to_leave_it_alone(
    bottle: Bottle, engine: Engine
) -> None:
    engine.error = BackendError("The Docker engine refused: invalid reference format")
    assert "invalid reference" in looked(ask_image(bottle, TEXT)).notes[0]
    engine.error = None
    assert looked(ask_image(bottle, "FROM agents:2\n")).notes == ()


@pytest.mark.parametrize("case", ["no sandbox", "not built", "a route", "decided"])
def test_the_engine_is_asked_for_pending_images_alone(agent_b: Bottle, engine: Engine, case: str) -> None:
    bottle = runnable(agent_b, "smolmachines" if case == "not built" else "docker")
    proposal = ask(bottle) if case == "a route" else ask_image(bottle, TEXT)
    if case == "no sandbox":
        Bottle.objects.update(manifest="")
    if case == "decided":
        Proposal.objects.update(status="rejected")
    assert not any(find_facts([queries.get_proposal(proposal.pk)]).values())
    assert engine.asked == []


def test_another_homes_bottle_is_not_compared_with_this_hosts_engine(bottle: Bottle, engine: Engine) -> None:
    Publication.objects.update(home="another")
    assert image_drift.ELSEWHERE in looked(ask_image(bottle, TEXT)).notes[0]
    assert engine.asked == []


@pytest.mark.parametrize("verb", ["approve", "modify", "reject"])
def test_a_tag_that_moves_after_the_look_makes_the_answer_stale(
    bottle: Bottle, engine: Engine, operator: User, verb: str
) -> None:
    """However short ago the look was: who decides has the engine asked anew."""
    proposal = ask_image(bottle, TEXT)
    before = looked(proposal)
    engine.told = [MOVED]
    more: dict[str, Any] = {"note": "x"}
    if verb == "modify":
        more["payload"] = {"dockerfile": "FROM agents:3\n"}
    decide: Any = getattr(decisions, verb)
    with pytest.raises(StaleReview):
        decide(proposal.pk, actor=operator, seen_digest=before.seen_digest, **more)
    now = looked(proposal)
    changed = changed_since(fingerprint(before), now)
    assert changed is not None and MOVED in changed.sentences[0]
    decide(proposal.pk, actor=operator, seen_digest=now.seen_digest, **more)
    assert len(engine.asked) == 3, "a look and two tries: the second look has what the first try was told"


def test_what_was_seen_counts_while_the_engine_does_not_answer(
    bottle: Bottle, engine: Engine, operator: User
) -> None:
    engine.told = [MOVED]
    proposal = ask_image(bottle, TEXT)
    digest = seen(proposal)
    engine.error = Unavailable(AWAY)
    decisions.approve(proposal.pk, actor=operator, seen_digest=digest)


def test_a_decision_asks_an_engine_that_pages_leave_alone(
    bottle: Bottle, engine: Engine, operator: User
) -> None:
    proposal = ask_image(bottle, TEXT)
    digest = seen(proposal)
    engine.error = Unavailable(AWAY)
    assert looked(ask_image(bottle, "FROM agents:2\n")).notes  # from now on
    engine.error, engine.told = None, [MOVED]  # back before a page would ask again
    with pytest.raises(StaleReview):
        decisions.approve(proposal.pk, actor=operator, seen_digest=digest)


def test_the_engine_is_asked_before_anything_is_locked(
    bottle: Bottle, engine: Engine, operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def noted(module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(*arguments: Any, **more: Any) -> Any:
            order.append(name)
            return real(*arguments, **more)

        monkeypatch.setattr(module, name, call)

    noted(image_drift, "check_images")
    noted(decisions, "_lock")
    proposal = ask_image(bottle, TEXT)
    assert order == [], "filing asks no engine"
    decisions.approve(proposal.pk, actor=operator, seen_digest=seen(proposal))
    assert order == ["check_images", "check_images", "_lock"]


def test_open_pages_learn_of_a_note(
    bottle: Bottle, engine: Engine, later: Callable[[float], None], operator: User
) -> None:
    proposal = ask_image(bottle, TEXT)
    before = card_of(proposal, operator)
    engine.error = Unavailable(AWAY)
    later(60)
    after = card_of(proposal, operator)
    assert before.review is not None and after.review is not None
    assert before.review.seen_digest == after.review.seen_digest, "a note does not make it stale"
    assert before.state != after.state

"""Compare the image names in pending Dockerfiles with the engine: moved tags, missing images.

An operator's page never waits long for it: answers are kept for a while, an engine that does not answer is
left alone for a while, and a note says what could not be compared. Never call it inside a transaction.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from django.conf import settings

from botbottle.backends import image_builders
from botbottle.backends.base import Unavailable
from botbottle.core.plan_types import BackendError
from botbottle.dockerfiles.parse import digest_of
from botbottle.models import Bottle
from egress.tables import homes
from supervise.bottles import images
from supervise.models import Proposal

log = logging.getLogger(__name__)
PAGE_SECONDS = 1.5  # that a page waits, however many cards it has
DECISION_SECONDS = 10.0  # that a decision waits: it is about one card, and final
SILENT_SECONDS = 1.0  # after which the engine counts as gone, for a page
LONG_SILENT_SECONDS = 5.0  # the same, for a decision
ROUND_SECONDS = 5.0  # that the engine is asked on for the next page
FRESH_SECONDS = 30.0
KEPT_SECONDS = 600.0  # for a decision while the engine does not answer
REST_SECONDS = 15.0  # after it did not
MOST_KEPT = 512
ELSEWHERE = "the bottle is another home's, and so is its engine"
TOO_LATE = "it did not answer in time"


@dataclass(frozen=True, slots=True)
class Names:
    """The findings for one text of one bottle. The notes say why names could not be compared."""

    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class _Question(NamedTuple):
    bottle: int
    backend: str
    slug: str
    image: str  # in force
    digest: str  # of the text


ImageFindings = Mapping[tuple[int, str], Names]  # by bottle and text


class _Engine:
    """The engine's answers, and whether it can be asked again. One round of questions at a time."""

    def __init__(self) -> None:
        self._said: dict[_Question, tuple[float, Names]] = {}
        self._asking = threading.Lock()
        self._rests_until, self._reason = 0.0, ""

    def answers(self, questions: Mapping[_Question, str], *, again: bool) -> dict[_Question, Names]:
        """The answers that arrive in time. `again`: earlier ones count only if the engine does not answer."""
        begun = monotonic()
        self._ask(questions, begun if again else begun - FRESH_SECONDS, again=again)
        oldest = begun - (KEPT_SECONDS if again else FRESH_SECONDS)
        known = {each: self._known(each, oldest) for each in questions}
        missing = _not_compared(self._reason if self._rests() else TOO_LATE)
        return {each: names or missing for each, names in known.items()}

    def _known(self, question: _Question, since: float) -> Names | None:
        at, names = self._said.get(question, (since, None))
        return names if at >= since else None

    def _rests(self) -> bool:
        return monotonic() < self._rests_until

    def _ask(self, questions: Mapping[_Question, str], since: float, *, again: bool) -> None:
        """Ask the engine in another thread; return when everything is known, or time is up."""
        patience = DECISION_SECONDS if again else PAGE_SECONDS
        deadline = monotonic() + patience
        if not self._open(questions, since) or not self._asking.acquire(timeout=patience):
            return
        open_questions = self._open(questions, since)  # another page may have asked the same meanwhile
        if not open_questions or (self._rests() and not again):
            self._asking.release()
            return
        silent = LONG_SILENT_SECONDS if again else SILENT_SECONDS
        thread = threading.Thread(
            target=self._round, args=(open_questions, silent), name="named-images", daemon=True
        )
        thread.start()
        thread.join(max(0.0, deadline - monotonic()))

    def _open(self, questions: Mapping[_Question, str], since: float) -> dict[_Question, str]:
        return {each: text for each, text in questions.items() if self._known(each, since) is None}

    def _round(self, questions: Mapping[_Question, str], silent: float) -> None:
        deadline = monotonic() + ROUND_SECONDS
        try:
            for question, text in questions.items():
                if monotonic() > deadline:
                    return
                self._keep(question, _compared(question, text, silent))
        except Unavailable as error:
            self._rest(str(error))
        except Exception as error:
            log.exception("What the engine has could not be compared.")
            self._rest(f"bot-bottle itself failed ({type(error).__name__})")
        finally:
            self._asking.release()

    def _keep(self, question: _Question, names: Names) -> None:
        self._said[question] = (monotonic(), names)
        if len(self._said) > MOST_KEPT:
            del self._said[min(self._said, key=lambda each: self._said[each][0])]

    def _rest(self, reason: str) -> None:
        self._reason = reason
        self._rests_until = monotonic() + REST_SECONDS


_engine = _Engine()


def check_images(proposals: Iterable[Proposal], *, edited: str = "", again: bool = False) -> ImageFindings:
    """Compare the images named in these Dockerfiles, and in an operator's `edited` text, with the engine's.

    With `again`, as they are at this moment: for a decision.
    """
    asked = [each for each in proposals if _is_comparable(each.bottle)]
    if not asked:
        return {}
    present = images.present_of(each.bottle for each in asked)
    ours = homes.local_ids(present)
    found: dict[tuple[int, str], Names] = {}
    questions: dict[_Question, str] = {}
    for proposal, text in _texts(asked, edited):
        bottle = proposal.bottle
        if bottle.pk in ours:
            image = present[bottle.pk]
            questions[_Question(bottle.pk, bottle.backend, bottle.slug, image, digest_of(text))] = text
        else:
            found[bottle.pk, text] = _not_compared(ELSEWHERE)
    answers = _engine.answers(questions, again=again)
    return found | {(each.bottle, questions[each]): names for each, names in answers.items()}


def _is_comparable(bottle: Bottle) -> bool:
    return images.can_be_rebuilt(bottle) and image_builders.is_built(bottle.backend)


def _texts(proposals: Sequence[Proposal], edited: str) -> list[tuple[Proposal, str]]:
    texts = [(each, each.payload["dockerfile"]) for each in proposals]
    return [*texts, *((each, edited) for each in proposals if edited)]


def _compared(question: _Question, text: str, silent: float) -> Names:
    own = image_builders.images(question.backend, Path(settings.BOTTLE_HOME), question.slug)
    try:
        return Names(tuple(own.compare(text, question.image, silent)))
    except Unavailable:
        raise
    except BackendError as error:
        return _not_compared(str(error))


def _not_compared(reason: str) -> Names:
    return Names(notes=(f"the images it names could not be compared with the engine: {reason[:300]}",))

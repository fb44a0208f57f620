"""The product's settings with the database backend that notes its commits."""

from botbottle.settings import *  # noqa: F403
from botbottle.settings import DATABASES

DATABASES["default"]["ENGINE"] = "bench.timed_sqlite"

"""Settings for tests: the real ones, in a home of their own."""

import atexit
import os
import shutil
import tempfile

# mypy reads these settings too, and ends in a way that removes nothing: it brings a directory with it.
os.environ["BOTTLE_HOME"] = os.environ.get("BOTTLE_TEST_HOME") or tempfile.mkdtemp(prefix="bottle-test-home-")
atexit.register(shutil.rmtree, os.environ["BOTTLE_HOME"], ignore_errors=True)
os.environ.setdefault("EGRESS_PROCESSES", "1")
os.environ.setdefault("EGRESS_PROXY", "0")  # tests that need the real proxy start it

from botbottle.settings import *  # noqa: E402

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
WHITENOISE_AUTOREFRESH = True  # each test client would otherwise look at all static files first

"""Settings for tests: the real ones, in a home of their own."""

import atexit
import os
import shutil
import tempfile

os.environ["BOTTLE_HOME"] = tempfile.mkdtemp(prefix="bottle-test-home-")
atexit.register(shutil.rmtree, os.environ["BOTTLE_HOME"], ignore_errors=True)
os.environ.setdefault("EGRESS_PROXY", "0")  # tests that need the real proxy start it

from botbottle.settings import *

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

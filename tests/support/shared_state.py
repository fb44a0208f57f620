"""PostgreSQL and Redis in the place of SQLite and memory, for a while, in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from asgiref.local import Local
from asgiref.sync import SyncToAsync
from django.contrib.contenttypes.models import ContentType
from django.db import connection, connections
from django.test import override_settings

from botbottle.core import environment


class SharedState:
    """A migrated test database on this PostgreSQL server, and this Redis."""

    def __init__(self, postgres: str, redis: str, worker: str) -> None:
        self._variables = {"DATABASE_URL": postgres, "REDIS_URL": redis}
        with patch.dict(os.environ, self._variables):
            entry = environment.database("DATABASE_URL", Path())
        entry["TEST"] = {"NAME": f"test_{worker}"}
        self._database = connections.configure_settings({"default": entry})["default"]
        layer = {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [redis]}}
        self._settings = {"REDIS_URL": redis, "CHANNEL_LAYERS": {"default": layer}}
        with self.in_use():
            connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
            self._database["NAME"] = connection.settings_dict["NAME"]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Every thread connects again: Django keeps a connection for each. Programs that start find both."""
        sqlite, open_connections = connections.settings["default"], connections._connections
        connections.settings["default"], connections._connections = self._database, Local(True)
        ContentType.objects.clear_cache()
        try:
            with override_settings(**self._settings), patch.dict(os.environ, self._variables):
                yield
        finally:
            connections.close_all()
            SyncToAsync.single_thread_executor.submit(connections.close_all).result()
            connections.settings["default"], connections._connections = sqlite, open_connections
            ContentType.objects.clear_cache()

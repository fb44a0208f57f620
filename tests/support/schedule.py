"""Which tests one worker of pytest-xdist runs together: files that share an expensive fixture.

A server, a browser or a set of clients is started once for such a group, not once in each worker.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

# A file belongs to the first group that its path begins with; any other file is a group of its own.
GROUPS = {
    "a browser that reads": (
        "tests/browser/test_every_page.py",
        "tests/browser/test_detail.py",
        "tests/browser/test_bottles_page.py",
        "tests/browser/test_queue.py",
        "tests/browser/test_attention.py",
    ),
    "a browser that decides": ("tests/browser/",),
    "containers with servers": ("tests/botbottle/mcp_servers/test_docker.py",),
    "bottles with servers": ("tests/botbottle/mcp_servers/",),
    "agents in bottles": ("tests/bottles/",),
    "clients": ("tests/clients/",),
    "tools": ("tests/tools/",),
    "one server": (
        "tests/processes/test_bottle_life.py",
        "tests/processes/test_edges.py",
        "tests/processes/test_egress_life.py",
        "tests/processes/test_handed.py",
        "tests/processes/test_rebuild_log.py",
        "tests/processes/test_route_withdrawn.py",
        "tests/processes/test_session_context.py",
        "tests/processes/test_two_operators.py",
        "tests/processes/test_waiting_calls.py",
        "tests/processes/test_webhooks.py",
    ),
}


class ScheduleByGroup(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        for group, beginnings in GROUPS.items():
            if nodeid.startswith(beginnings):
                return group
        return super()._split_scope(nodeid)

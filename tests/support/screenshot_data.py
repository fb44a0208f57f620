"""One of everything: what has to be in the database so that each page of the console shows all its parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.support.server_shell import Errands
from tests.support.timeouts import wait_until

SEED = (Path(__file__).parent / "screenshot_seed.py").read_text()
IN_TROUBLE = """
from egress.models import Publication
answer = Publication.objects.exclude(proxy_problems=[]).filter(bottle__slug=given["slug"]).exists()
"""


@dataclass(frozen=True)
class Scene:
    """The pages by name, each with its address."""

    slug: str
    proposals: dict[str, str]

    @property
    def pages(self) -> dict[str, str]:
        ids = self.proposals
        one = {name: f"/proposals/{key}/" for name, key in ids.items()}
        return {
            "queue": f"/?bottle={self.slug}",
            "nothing fits": "/?q=there-is-no-such-host",
            "put aside": f"/?show=snoozed&bottle={self.slug}",
            "route": one["route"],
            "approve": f"{one['route']}?open=approve",
            "modify": f"{one['route']}?open=modify",
            "reject": f"{one['route']}?open=reject",
            "snooze": f"{one['route']}?open=snooze",
            **{name: one[name] for name in ("gate", "low", "wild", "widened", "inner")},
            "Dockerfile": one["image"],
            "modify Dockerfile": f"{one['image']}?open=modify",
            "tool call": one["call"],
            "wake": f"{one['asleep']}?open=snooze",
            "approved": one["approved"],
            "stopped asking": one["refused"],
            "rebuild failed": one["failed"],
            "rebuild at work": one["building"],
            "rebuild live": one["live"],
            "bulk approve": f"/bulk/?verb=approve&id={ids['low']}&id={ids['route']}",
            "bulk reject": f"/bulk/?verb=reject&id={ids['low']}&id={ids['route']}",
            "refusals": "/refusals/",
            "draft": f"/draft/?bottle={self.slug}&host=mirror.example.net",
            "history": "/history/",
            "bottles": "/bottles/",
            "bottle": f"/bottles/{self.slug}/",
            "change a route": f"/bottles/{self.slug}/routes/api.example.com/?open=change",
            "withdraw a route": f"/bottles/{self.slug}/routes/leased.example.com/?open=withdraw",
            "change a lease": f"/bottles/{self.slug}/routes/leased.example.com/?open=change",
            "versions compared": f"/bottles/{self.slug}/?from=1&to=3",
        }

    admin_pages = {
        "admin": "/admin/",
        "webhooks": "/admin/supervise/webhook/",
        "webhook": "/admin/supervise/webhook/add/",
        "deliveries": "/admin/supervise/delivery/",
        "secrets": "/admin/egress/secret/",
        "secret": "/admin/egress/secret/add/",
        "traffic": "/admin/egress/trafficrecord/",
        "proposals": "/admin/supervise/proposal/",
        "audit": "/admin/supervise/auditevent/",
        "password": "/admin/password_change/",
    }


def set_scene(errands: Errands, slug: str) -> Scene:
    errands.create_bottle(slug)
    made = Scene(slug, errands.run(SEED, slug=slug))
    wait_until(lambda: errands.run(IN_TROUBLE, slug=slug), what="the proxy's word of the torn file")
    return made


def strike(errands: Errands, scene: Scene) -> None:
    for slug in (scene.slug, f"{scene.slug}-twin"):
        errands.delete_bottle(slug)
    errands.run(
        "from supervise.models import Webhook; Webhook.objects.filter(name__endswith=given['slug']).delete()",
        slug=scene.slug,
    )

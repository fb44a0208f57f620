from django.apps import AppConfig


class SuperviseConfig(AppConfig):
    name = "supervise"
    verbose_name = "Supervise"

    def ready(self) -> None:
        from egress import store  # noqa: PLC0415 - models come first

        from . import events  # noqa: PLC0415

        store.elsewhere.connect(events.call_home)

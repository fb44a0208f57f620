from django.apps import AppConfig


class SuperviseConfig(AppConfig):
    name = "supervise"
    verbose_name = "Supervise"

    def ready(self) -> None:
        from egress.tables import versions  # noqa: PLC0415 - models come first
        from supervise import events  # noqa: PLC0415

        versions.elsewhere.connect(events.call_home)

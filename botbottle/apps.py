from django.apps import AppConfig


class BotBottleConfig(AppConfig):
    name = "botbottle"
    verbose_name = "Bottles"

    def ready(self) -> None:
        from botbottle import checks  # noqa: F401, PLC0415 - registers them

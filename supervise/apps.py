from django.apps import AppConfig


class SuperviseConfig(AppConfig):
    name = "supervise"
    verbose_name = "Supervise"

"""The console's addresses as they are when an identity provider is configured."""

from django.urls import include, path

urlpatterns = [
    path("", include("botbottle.urls")),
    path("oidc/", include("supervise.access.urls")),
]

"""The operator plane. Agents' endpoints are in supervise.mcp.urls and are not reachable from here."""

from django.conf import settings
from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("supervise.console.urls")),
    path("api/", include("supervise.api.urls")),
    path("admin/", admin.site.urls),
]
handler400 = "botbottle.web.error_pages.bad_request"
handler500 = "botbottle.web.error_pages.server_error"
if settings.OIDC_ISSUER:
    urlpatterns.append(path("oidc/", include("supervise.access.urls")))

"""Signing in through an identity provider (OpenID Connect), when OIDC_ISSUER is set.

Trust boundary: the provider identifies users and their groups. It is trusted only for tokens that it signed
for this client, now, and for this very sign-in; users are known by its own id for them, never by an address
or a name that could be another user's.
"""

from __future__ import annotations

import hashlib
import re
import time
from typing import Any

import jwt
import requests
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import Group, User
from django.core.exceptions import SuspiciousOperation
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from mozilla_django_oidc.auth import OIDCAuthenticationBackend  # type: ignore[import-untyped]
from mozilla_django_oidc.views import (  # type: ignore[import-untyped]
    OIDCAuthenticationCallbackView,
    OIDCAuthenticationRequestView,
)

from supervise import audit

REMEMBERED_SECONDS = 3600.0
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint", "jwks_uri")
_remembered: dict[str, tuple[float, dict[str, str]]] = {}
FAILURES = (requests.RequestException, jwt.PyJWTError, SuspiciousOperation, KeyError, ValueError, TypeError)


def provider() -> dict[str, str]:
    """The provider's addresses, as it publishes them. Raises the exceptions in FAILURES."""
    issuer = settings.OIDC_ISSUER
    asked_at, found = _remembered.get(issuer, (0.0, {}))
    if not found or time.monotonic() - asked_at > REMEMBERED_SECONDS:
        address = f"{issuer}/.well-known/openid-configuration"
        answer = requests.get(address, timeout=settings.OIDC_TIMEOUT, allow_redirects=False)
        answer.raise_for_status()
        published = answer.json()
        if str(published["issuer"]).rstrip("/") != issuer:
            raise ValueError("the provider names another issuer")
        found = {name: str(published[name]) for name in _ENDPOINTS}
        if issuer.startswith("https://") and not all(url.startswith("https://") for url in found.values()):
            raise ValueError("the provider names an address without TLS")
        _remembered[issuer] = (time.monotonic(), found)
    return found


class OidcBackend(OIDCAuthenticationBackend):  # type: ignore[misc]
    """The package's backend with the checks that it leaves out, and roles from the provider's groups."""

    def __init__(self) -> None:
        # Django creates one for every permission check: nothing here may ask the provider.
        self.UserModel = User
        self.OIDC_RP_CLIENT_ID = settings.OIDC_RP_CLIENT_ID
        self.OIDC_RP_CLIENT_SECRET = settings.OIDC_RP_CLIENT_SECRET
        self.OIDC_RP_SIGN_ALGO = settings.OIDC_RP_SIGN_ALGO
        self.OIDC_RP_IDP_SIGN_KEY = None

    @property
    def OIDC_OP_TOKEN_ENDPOINT(self) -> str:  # noqa: N802 - the package's name
        return provider()["token_endpoint"]

    @property
    def OIDC_OP_USER_ENDPOINT(self) -> str:  # noqa: N802
        return provider()["userinfo_endpoint"]

    @property
    def OIDC_OP_JWKS_ENDPOINT(self) -> str:  # noqa: N802
        return provider()["jwks_uri"]

    def authenticate(
        self, request: HttpRequest | None, nonce: str = "", code_verifier: str = "", **others: Any
    ) -> User | None:
        """Only for a sign-in that began here, not for a form that happens to carry a code."""
        if request is None or not nonce or not code_verifier or others:
            return None
        found: User | None = super().authenticate(request, nonce=nonce, code_verifier=code_verifier)
        return found

    def verify_token(self, token: str, **kwargs: Any) -> dict[str, Any]:
        payload: dict[str, Any] = super().verify_token(token, **kwargs)
        audience = payload.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        if str(payload.get("iss", "")).rstrip("/") != settings.OIDC_ISSUER:
            raise SuspiciousOperation("The token is another issuer's.")
        client_id = self.OIDC_RP_CLIENT_ID
        if (
            client_id not in audiences
            or payload.get("azp", client_id if len(audiences) == 1 else None) != client_id
        ):
            raise SuspiciousOperation("The token is for somebody else.")
        if "exp" not in payload or not payload.get("sub"):
            raise SuspiciousOperation("The token has no end, or is nobody's.")
        return payload

    def get_or_create_user(self, access_token: str, id_token: str, payload: dict[str, Any]) -> User | None:
        claims = self.get_userinfo(access_token, id_token, payload)
        if claims.get("sub") != payload["sub"]:
            raise SuspiciousOperation("The provider's answer is about somebody else.")
        return _user_of(payload["sub"], {**payload, **claims})


class Begin(OIDCAuthenticationRequestView):  # type: ignore[misc]
    """Sends the browser to the provider."""

    def __init__(self, **options: Any) -> None:
        super(OIDCAuthenticationRequestView, self).__init__(**options)
        self.OIDC_RP_CLIENT_ID = settings.OIDC_RP_CLIENT_ID

    @property
    def OIDC_OP_AUTH_ENDPOINT(self) -> str:  # noqa: N802
        return provider()["authorization_endpoint"]

    def get(self, request: HttpRequest) -> HttpResponse:
        try:
            answer: HttpResponse = super().get(request)
        except FAILURES:
            return _refused(request, "The identity provider does not answer. Try again, or use a password.")
        return answer


class Return(OIDCAuthenticationCallbackView):  # type: ignore[misc]
    """The view that the provider sends the browser back to."""

    def get(self, request: HttpRequest) -> HttpResponse:
        try:
            answer: HttpResponse = super().get(request)
        except FAILURES:
            return self.login_failure()
        return answer

    def login_failure(self) -> HttpResponse:
        return _refused(self.request, "The identity provider's answer does not sign in here.")


def _refused(request: HttpRequest, sentence: str) -> HttpResponse:
    messages.error(request, sentence)
    return redirect("admin:login")


def _user_of(subject: str, claims: dict[str, Any]) -> User | None:
    """The user with this id at the provider, created if new, with the roles of the provider's groups.

    If roles come from the provider, a user without a role cannot sign in, and lost roles are removed.
    """
    mark = hashlib.sha256(f"{settings.OIDC_ISSUER} {subject}".encode()).hexdigest()[:16]
    roles = _roles(claims)
    with transaction.atomic():
        user = User.objects.select_for_update().filter(username__endswith=f"+{mark}").first()
        if user is None and settings.OIDC_ROLE_GROUPS and not roles:
            return None
        if user is None:
            user = User.objects.create_user(f"{_readable(claims)}+{mark}")
            _record("user added", user, roles)
        if settings.OIDC_ROLE_GROUPS:
            _assign_roles(user, roles)
    return user if roles or not settings.OIDC_ROLE_GROUPS else None


def _assign_roles(user: User, roles: set[str]) -> None:
    present = set(user.groups.filter(name__in=settings.OIDC_ROLE_GROUPS).values_list("name", flat=True))
    if present == roles and user.is_staff == bool(roles):
        return
    user.groups.remove(*Group.objects.filter(name__in=present - roles))
    user.groups.add(*Group.objects.filter(name__in=roles))
    user.is_staff = bool(roles)
    user.save(update_fields=["is_staff"])
    _record("user changed", user, roles)


def _roles(claims: dict[str, Any]) -> set[str]:
    given = claims.get(settings.OIDC_GROUPS_CLAIM)
    groups = set(given) if isinstance(given, list) and all(isinstance(one, str) for one in given) else set()
    return {role for role, group in settings.OIDC_ROLE_GROUPS.items() if group in groups}


def _readable(claims: dict[str, Any]) -> str:
    """A name for people to recognise; only the hash behind it identifies the user."""
    name = str(claims.get("preferred_username") or claims.get("email") or "user")
    return re.sub(r"[^a-z0-9._-]", "-", name.lower())[:60] or "user"


def _record(action: str, user: User, roles: set[str]) -> None:
    audit.append(
        action,
        actor_name=f"identity provider {settings.OIDC_ISSUER}"[:150],
        details={"user": user.get_username(), "groups": sorted(roles)},
    )

"""Signing in to the console: limits on attempts, and the length of a session.

Trust boundary: anybody who reaches the console's port. The limits are in the database, so that all workers
share them. They are per address: nobody can lock an account for its owner at another address.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any

from django.conf import settings
from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth import SESSION_KEY, user_logged_in
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.contrib.sessions.backends.base import SessionBase
from django.db import transaction
from django.db.models import Model
from django.dispatch import receiver
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.crypto import salted_hmac

from supervise import audit
from supervise.models import LoginFailure

WINDOW = timedelta(minutes=15)
MEMORY_OF_FAILURES = timedelta(days=7)
PER_ACCOUNT = 5  # wrong passwords for one account from one address within the window
PER_ADDRESS = 30
NOTED_SECONDS = 60.0  # a session is prolonged at most this often
BEGAN, SEEN = "began", "seen"
BACKGROUND = "X-Background"


class SignInForm(AdminAuthenticationForm):
    """Shows the same error whatever was wrong, even for a right password after too many wrong ones."""

    error_messages = {
        **AdminAuthenticationForm.error_messages,
        "invalid_login": (
            "This user name and password do not sign in here. After several wrong ones, attempts from your "
            f"address are refused for up to {WINDOW.seconds // 60} minutes, also right ones."
        ),
    }


class ThrottledBackend(ModelBackend):
    """Django's backend with limits. Calls without a request, such as a program's, are not counted."""

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        **credentials: Any,
    ) -> User | None:
        if request is None or username is None or password is None:
            return super().authenticate(request, username, password, **credentials)
        attempt = _claim(_account(username), address_of(request))
        if attempt is None:
            return None
        user = super().authenticate(request, username, password, **credentials)
        if user is None:
            _record_when_full(attempt)
            return None
        LoginFailure.objects.filter(account=attempt.account, address=attempt.address).delete()
        return user

    def get_all_permissions(self, user_obj: User | AnonymousUser, obj: Model | None = None) -> set[str]:
        """The permissions of a user and of their groups, by one query, because every request needs them."""
        is_unknown = user_obj.is_active and not (user_obj.is_superuser or hasattr(user_obj, "_perm_cache"))
        if is_unknown and obj is None and isinstance(user_obj, User):
            user_obj._perm_cache = _granted_to(user_obj)  # type: ignore[attr-defined]
        return super().get_all_permissions(user_obj, obj)


def _granted_to(user: User) -> set[str]:
    names = ("content_type__app_label", "codename")
    own = Permission.objects.filter(user=user).order_by().values_list(*names)
    of_groups = Permission.objects.filter(group__user=user).order_by().values_list(*names)
    return {f"{app}.{codename}" for app, codename in own.union(of_groups)}


def address_of(request: HttpRequest) -> str:
    """The address that an attempt is counted for; of IPv6 the network, because a home has billions of
    addresses.

    Behind the HTTPS proxy of CONSOLE_HTTPS, this is the address that the proxy saw.
    """
    text = request.META.get("REMOTE_ADDR", "")
    if settings.SECURE_COOKIES:
        text = request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip() or text
    try:
        address = ip_address(text)
    except ValueError:
        return "unknown"
    if isinstance(address, IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped or ip_network((address, 64), strict=False))
    return str(address)


def limited_sessions(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Middleware that ends sessions after a while without use, and always after a working day.

    It sets the session's own expiry in the database, so open websockets end with it.
    """

    def middleware(request: HttpRequest) -> HttpResponseBase:
        if SESSION_KEY in request.session:
            _prolong(request)
        return get_response(request)

    return middleware


def _prolong(request: HttpRequest) -> None:
    session, now = request.session, time.time()
    left = session.get(BEGAN, now) + settings.CONSOLE_SESSION_SECONDS - now
    if left <= 0:
        session.flush()
        return
    # A request that a page's script marks as its own does not show that a person is there.
    if BACKGROUND not in request.headers and now - session.get(SEEN, 0.0) >= NOTED_SECONDS:
        _set_expiry(session, session.get(BEGAN, now), now)


@receiver(user_logged_in)
def _begin(request: HttpRequest, **_: Any) -> None:
    now = time.time()
    _set_expiry(request.session, now, now)


def _set_expiry(session: SessionBase, began: float, now: float) -> None:
    left = began + settings.CONSOLE_SESSION_SECONDS - now
    session[BEGAN], session[SEEN] = began, now
    session.set_expiry(max(1, int(min(settings.CONSOLE_IDLE_SECONDS, left))))


def _claim(account: str, address: str) -> LoginFailure | None:
    """Count the attempt as failed before it is made, so that concurrent attempts cannot exceed the limit.

    Returns None if there were too many already: then this one does not count, and the wait does not grow.
    """
    now = timezone.now()
    LoginFailure.objects.filter(at__lt=now - MEMORY_OF_FAILURES).delete()
    attempt = LoginFailure.objects.create(account=account, address=address, at=now)
    earlier = _recent(address).filter(pk__lt=attempt.pk)
    if earlier.count() < PER_ADDRESS and earlier.filter(account=account).count() < PER_ACCOUNT:
        return attempt
    attempt.delete()
    return None


def _record_when_full(attempt: LoginFailure) -> None:
    """Record, once each time, that attempts begin to be refused."""
    recent = _recent(attempt.address)
    for_account = recent.filter(account=attempt.account)
    if for_account.count() == PER_ACCOUNT or recent.count() == PER_ADDRESS:
        with transaction.atomic():
            audit.append(
                "sign-in refused for a while",
                actor_name="bot-bottle",
                details={"account": attempt.account, "address": attempt.address},
            )


def _recent(address: str) -> Any:
    return LoginFailure.objects.filter(address=address, at__gt=timezone.now() - WINDOW)


def _account(username: str) -> str:
    """The user's name; for an unknown name only a hash that identifies it."""
    name = User.normalize_username(username)[:150]
    known = User.objects.filter(username=name).exists()
    return name if known else "nobody " + salted_hmac("supervise.login", name).hexdigest()[:16]

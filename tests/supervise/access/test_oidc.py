"""Signing in through a small real identity provider, which tests make lie in every way that matters."""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from django.apps import apps
from django.contrib.auth.models import User
from django.test import Client

import botbottle.urls  # noqa: F401 - looks at the settings once, and must see them without a provider
from botbottle.checks import whole_identity_provider
from supervise.access import oidc
from supervise.migrations import _roles as roles
from supervise.models import AuditEvent
from tests.support.identity_provider import CLIENT, Provider

pytestmark = pytest.mark.django_db
SECRET = "of-the-client"
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def provider(settings: Any) -> Iterator[Provider]:
    running = Provider()
    thread = threading.Thread(target=running.server.serve_forever, args=(0.01,))
    thread.start()
    settings.OIDC_ISSUER = running.issuer
    settings.OIDC_RP_CLIENT_ID, settings.OIDC_RP_CLIENT_SECRET = CLIENT, SECRET
    settings.OIDC_ROLE_GROUPS = {"operator": "ops", "viewer": "watchers"}
    settings.AUTHENTICATION_BACKENDS = [
        "supervise.access.login.ThrottledBackend",
        "supervise.access.oidc.OidcBackend",
    ]
    settings.ROOT_URLCONF = "tests.support.oidc_urls"
    roles.grant(apps)
    yield running
    oidc._remembered.clear()
    running.server.shutdown()
    running.server.server_close()
    thread.join()


def begin(client: Client, provider: Provider, **query: str) -> None:
    """As far as the provider's page."""
    answer = client.get("/oidc/begin/", query)
    assert answer.status_code == 302, answer
    target = urlsplit(answer.headers["Location"])
    assert f"{target.scheme}://{target.netloc}{target.path}" == f"{provider.issuer}/authorization"
    provider.asked = {key: values[0] for key, values in parse_qs(target.query).items()}


def come_back(client: Client, provider: Provider, **changes: str) -> Any:
    query = {"code": "a-code", "state": provider.asked["state"], **changes}
    return client.get("/oidc/return/", query, follow=True)


def sign_in(provider: Provider, **query: str) -> tuple[Client, Any]:
    client = Client()
    begin(client, provider, **query)
    return client, come_back(client, provider)


def is_signed_in(client: Client) -> bool:
    return bool(client.get("/history/").status_code == 200)


def test_who_is_in_the_operators_group_signs_in_as_an_operator(provider: Provider) -> None:
    client, _ = sign_in(provider)
    assert is_signed_in(client)
    user = User.objects.get()
    assert user.username.startswith("olivia+")
    assert user.has_perm("supervise.decide_proposal")
    assert not user.is_superuser and not user.has_usable_password()
    assert [event.action for event in AuditEvent.objects.order_by("seq")] == ["user added", "user changed"]
    sign_in(provider)
    assert User.objects.count() == 1, "the same one again"
    assert AuditEvent.objects.count() == 2


def test_the_request_carries_state_nonce_and_a_challenge_that_is_redeemed(provider: Provider) -> None:
    sign_in(provider)
    asked, redeemed = provider.asked, provider.redeemed
    assert asked["response_type"] == "code" and asked["code_challenge_method"] == "S256"
    digest = hashlib.sha256(redeemed["code_verifier"].encode()).digest()
    assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == asked["code_challenge"]
    assert (redeemed["client_id"], redeemed["client_secret"]) == (CLIENT, SECRET)


def test_it_leads_back_to_the_card_and_nowhere_else(provider: Provider) -> None:
    _, answer = sign_in(provider, next="/history/?page=1")
    assert answer.redirect_chain[-1][0] == "/history/?page=1"
    _, answer = sign_in(provider, next="https://evil.example/")
    assert answer.redirect_chain[-1][0] == "/"


@pytest.mark.parametrize("groups", [[], ["others"], None, "ops", [["ops"]], {"ops": 1}])
def test_who_is_in_no_group_of_ours_is_nobody(provider: Provider, groups: Any) -> None:
    provider.claims["groups"] = groups
    client, answer = sign_in(provider)
    assert not is_signed_in(client)
    assert "does not sign in here" in answer.text
    assert not User.objects.exists()


def test_who_left_the_group_loses_the_role(provider: Provider) -> None:
    sign_in(provider)
    provider.claims["groups"] = ["watchers"]
    sign_in(provider)
    assert [group.name for group in User.objects.get().groups.all()] == ["viewer"]
    provider.claims["groups"] = []
    client, _ = sign_in(provider)
    assert not is_signed_in(client)
    user = User.objects.get()
    assert not user.is_staff and not user.groups.exists()


def test_without_a_mapping_a_new_user_may_do_nothing(provider: Provider, settings: Any) -> None:
    settings.OIDC_ROLE_GROUPS = {}
    client, _ = sign_in(provider)
    assert not is_signed_in(client)
    user = User.objects.get()
    assert not user.is_staff and not user.get_all_permissions()


def test_a_name_or_address_of_somebody_here_makes_nobody_that_one(provider: Provider) -> None:
    root = User.objects.create_superuser("olivia", email="root@example.com", password="correct-horse-battery")
    provider.claims |= {"email": root.email, "preferred_username": "olivia"}
    sign_in(provider)
    made = User.objects.exclude(pk=root.pk).get()
    assert not made.is_superuser


LIES: dict[str, dict[str, Any]] = {
    "for another client": {"aud": "another"},
    "for several, asked by another": {"aud": [CLIENT, "another"], "azp": "another"},
    "for several, asked by nobody": {"aud": [CLIENT, "another"]},
    "for another, asked by us": {"aud": "another", "azp": CLIENT},
    "of another issuer": {"iss": "https://evil.example"},
    "over": {"exp": int(time.time()) - 10},
    "without an end": {"exp": None},
    "of another sign-in": {"nonce": "another"},
    "without nonce": {"nonce": None},
    "about another than the answer": {"sub": "another"},
    "about nobody": {"sub": None},
    "from the future": {"iat": int(time.time()) + 3600},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_token_that_is_wrong_signs_nobody_in(provider: Provider, lie: dict[str, Any]) -> None:
    provider.token = lie
    client, answer = sign_in(provider)
    assert not is_signed_in(client)
    assert "does not sign in here" in answer.text
    assert not User.objects.exists()


def test_a_token_signed_by_another_signs_nobody_in(provider: Provider) -> None:
    provider.key = OTHER_KEY
    client, _ = sign_in(provider)
    assert not is_signed_in(client)


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
def test_a_token_without_a_real_signature_signs_nobody_in(provider: Provider, algorithm: str) -> None:
    provider.algorithm, provider.key = algorithm, "x" * 64  # type: ignore[assignment]
    client, _ = sign_in(provider)
    assert not is_signed_in(client)


def test_another_browsers_state_signs_nobody_in(provider: Provider) -> None:
    begin(Client(), provider)
    victim = Client()
    victim.get("/admin/login/")
    assert "does not sign in here" in come_back(victim, provider).text
    assert not is_signed_in(victim)


def test_an_answer_is_used_once(provider: Provider) -> None:
    client = Client()
    begin(client, provider)
    come_back(client, provider)
    client.post("/admin/logout/")
    assert "does not sign in here" in come_back(client, provider).text
    assert not is_signed_in(client)


def test_a_password_form_with_a_code_in_its_address_is_only_a_password_form(provider: Provider) -> None:
    client = Client()
    begin(client, provider)
    provider.token = {"nonce": None}
    query = f"code=a-code&state={provider.asked['state']}"
    client.post(f"/admin/login/?{query}", {"username": "x", "password": "y"})
    assert provider.redeemed == {}
    assert not is_signed_in(client)


def test_a_return_that_nobody_began_here_signs_nobody_in(provider: Provider) -> None:
    answer = Client().get("/oidc/return/", {"code": "a", "state": 'b"><script>'})
    assert answer.headers["Location"] == "/admin/login/"


@pytest.mark.parametrize("published", [None, {"issuer": "https://evil.example"}, {"issuer": 7}])
def test_a_provider_in_trouble_leaves_passwords_working(
    provider: Provider, operator: User, published: dict[str, Any] | None
) -> None:
    provider.is_broken, provider.published = published is None, published or {}
    client = Client()
    answer = client.get("/oidc/begin/", follow=True)
    assert "does not answer" in answer.text
    client.post("/admin/login/", {"username": "olivia", "password": "correct-horse-battery", "next": "/"})
    assert is_signed_in(client)


def test_the_sign_in_page_offers_it_only_when_there_is_one(client: Client, db: None) -> None:
    assert "organisation" not in client.get("/admin/login/").text
    assert client.get("/oidc/begin/").status_code == 404


def test_the_sign_in_page_offers_it(provider: Provider) -> None:
    page = Client().get("/admin/login/?next=/history/").text
    assert 'href="/oidc/begin/?next=%2Fhistory%2F"' in page


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, None),
        ({"OIDC_ISSUER": "https://login.example.com"}, "OIDC_CLIENT_ID and OIDC_CLIENT_SECRET"),
        ({"OIDC_RP_CLIENT_ID": "x"}, "OIDC_ISSUER and OIDC_CLIENT_SECRET"),
        ({"OIDC_ROLE_GROUPS": {"operator": "ops"}}, "OIDC_ISSUER and OIDC_CLIENT_ID and OIDC_CLIENT_SECRET"),
        (
            {
                "OIDC_ISSUER": "http://login.example.com",
                "OIDC_RP_CLIENT_ID": "x",
                "OIDC_RP_CLIENT_SECRET": "y",
            },
            "must look like https://",
        ),
        (
            {
                "OIDC_ISSUER": "https://login.example.com",
                "OIDC_RP_CLIENT_ID": "x",
                "OIDC_RP_CLIENT_SECRET": "y",
            },
            None,
        ),
    ],
)
def test_half_a_configuration_is_refused(settings: Any, given: dict[str, Any], problem: str | None) -> None:
    for name, value in given.items():
        setattr(settings, name, value)
    found = whole_identity_provider()
    assert (problem in str(found[0].hint)) if problem else found == []

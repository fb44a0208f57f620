"""Browsers of named operators, by Django's test client."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client


def browser_of(user: User, **options: bool) -> Client:
    client = Client(**options)
    client.force_login(user)
    return client


@pytest.fixture
def olivia(operator: User) -> Client:
    return browser_of(operator)


@pytest.fixture
def otto(second_operator: User) -> Client:
    return browser_of(second_operator)


@pytest.fixture
def vera(viewer: User) -> Client:
    return browser_of(viewer)


@pytest.fixture
def root(db: None) -> Client:
    return browser_of(User.objects.create_superuser("root", password="correct-horse-battery"))

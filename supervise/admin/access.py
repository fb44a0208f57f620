"""Users, assignments and failed sign-ins in the admin.

Trust boundary: users who may change users must not be able to make anybody a superuser by it.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from botbottle.admin import ReadOnlyAdmin
from supervise import audit
from supervise.access import assignments
from supervise.access.login import SignInForm
from supervise.models import Assignment, LoginFailure

# Only a superuser changes these: with them, a user could get every other right.
_SUPERUSERS_ONLY = ("is_superuser", "user_permissions")

admin.site.login_form = SignInForm
admin.site.unregister(User)


@admin.register(User)
class AccountAdmin(UserAdmin):  # type: ignore[type-arg]
    """Django's user admin, except that only superusers change superusers, and that changes are recorded."""

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        fixed = tuple(super().get_readonly_fields(request, obj))
        return fixed if _is_superuser(request) else (*fixed, *_SUPERUSERS_ONLY)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_change_permission(request, obj) and _may_touch(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_delete_permission(request, obj) and _may_touch(request, obj)

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        """Leave superusers out for others: bulk deletion does not check the permission for each row."""
        users: QuerySet[User] = super().get_queryset(request)
        return users if _is_superuser(request) else users.filter(is_superuser=False)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        _record("user changed" if change else "user added", request, form.instance)

    def delete_model(self, request: HttpRequest, obj: User) -> None:
        with transaction.atomic():
            _record("user deleted", request, obj)
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        for user in queryset:
            self.delete_model(request, user)


@admin.register(Assignment)
class AssignmentAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    when_empty = (
        "No assignments yet: every operator decides for every bottle. A bottle with "
        "assignments is theirs alone."
    )
    list_display = ["bottle", "operator", "assigned_by", "created_at"]
    list_select_related = ["bottle", "operator"]
    fields = ["bottle", "operator"]
    search_fields = ["bottle__slug", "operator__username"]

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Assignment, form: Any, change: bool) -> None:
        obj.pk = assignments.assign(obj.bottle, obj.operator, author=request.user.get_username()).pk

    def delete_model(self, request: HttpRequest, obj: Assignment) -> None:
        assignments.release(obj, author=request.user.get_username())

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Assignment]) -> None:
        for assignment in queryset:
            assignments.release(assignment, author=request.user.get_username())


@admin.register(LoginFailure)
class LoginFailureAdmin(ReadOnlyAdmin):
    """Deleting failures lets a refused user try again at once."""

    when_empty = "Nobody failed to sign in lately."
    list_display = ["at", "account", "address"]
    list_filter = ["at"]
    search_fields = ["account", "address"]
    fields = ["at", "account", "address"]

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return admin.ModelAdmin.has_delete_permission(self, request, obj)


def _is_superuser(request: HttpRequest) -> bool:
    return request.user.is_active and request.user.is_superuser


def _may_touch(request: HttpRequest, user: User | None) -> bool:
    return user is None or not user.is_superuser or _is_superuser(request)


def _record(action: str, request: HttpRequest, user: User) -> None:
    audit.append(
        action,
        actor_name=request.user.get_username(),
        details={
            "user": user.get_username(),
            "active": user.is_active,
            "staff": user.is_staff,
            "superuser": user.is_superuser,
            "groups": sorted(user.groups.values_list("name", flat=True)),
        },
    )

"""Which names of headers and URL parameters are taken for credentials, and which are left alone."""

from __future__ import annotations

import pytest

from egress.proxy.credentials.names import credential_in_query, is_credential_header

CREDENTIALS = [
    "authorization", "x-authorization", "authentication", "x-auth-key", "x-auth-token",
    "x-auth-request-user", "proxy-authorization", "es-secondary-authorization",
    "x-ms-authorization-auxiliary", "x-goog-iam-authorization-token", "x-registry-auth", "cookie",
    "cookie2", "x-cookie", "x-session", "x-session-token", "x-metabase-session",
    "vmware-api-session-id", "x-sessionid", "x-token", "x-api-token", "x-user-token", "x-access-token",
    "x-authtoken", "private-token", "job-token", "deploy-token", "circle-token", "x-gitlab-token",
    "x-github-token", "x-vault-token", "x-consul-token", "x-nomad-token", "x-plex-token",
    "x-figma-token", "x-shopify-access-token", "x-csrf-token", "x-xsrf-token", "x-csrftoken",
    "jenkins-crumb", "api-key", "apikey", "x-api-key", "x-apikey", "x-mbx-apikey", "x-access-key",
    "x-secret-key", "x-goog-api-key", "dd-api-key", "dd-application-key", "fastly-key",
    "ocp-apim-subscription-key", "x-functions-key", "x-rapidapi-key", "x-algolia-api-key",
    "x-redmine-api-key", "x-hasura-admin-secret", "cf-access-client-secret", "cf-access-jwt-assertion",
    "x-jwt-assertion", "cb-access-passphrase", "cb-access-sign", "signature", "signature-input",
    "x-password", "x-wsse", "x-honeycomb-team", "x-amz-security-token", "x-amz-access-token",
    "x-amz-s3session-token", "x-amz-sso_bearer_token", "x-amzn-oidc-data", "x-amzn-mtls-clientcert",
    "x-forwarded-client-cert", "x-ms-client-principal", "remote-user", "x-remote-user",
    "x-remote-group", "x-forwarded-user", "x-forwarded-email", "x-forwarded-groups",
    "x-forwarded-preferred-username", "x-webauth-user", "x-authenticated-user",
    "x-goog-authenticated-user-email", "x_api_key", "x.auth.token", "X_Remote_User", "authorization-",
    "-authorization",
]  # fmt: skip
HARMLESS = [
    "accept", "content-type", "content-md5", "user-agent", "referer", "origin", "if-match",
    "if-none-match", "expect", "x-request-id", "traceparent", "git-protocol", "git-lfs-version",
    "x-github-api-version", "graphql-features", "npm-auth-type", "npm-command", "npm-otp", "npm-scope",
    "npm-session", "pacote-version", "docker-content-digest", "anthropic-version", "anthropic-beta",
    "openai-organization", "openai-project", "x-stainless-retry-count", "x-goog-user-project",
    "mcp-session-id", "mcp-protocol-version", "last-event-id", "sec-websocket-key",
    "sec-websocket-version", "sec-websocket-protocol", "idempotency-key", "x-idempotency-key",
    "surrogate-key", "lock-token", "sync-token", "x-page-token", "x-continuation-token",
    "x-ms-documentdb-partitionkey", "x-ms-session-token", "x-atlassian-token", "kbn-xsrf",
    "x-snowflake-authorization-token-type", "x-amz-date", "x-amz-content-sha256", "x-amz-target",
    "x-amz-meta-key", "x-amz-client-token", "x-amz-create-session-mode",
    "x-amz-server-side-encryption-customer-key", "x-amz-server-side-encryption-customer-key-md5",
    "x-amz-server-side-encryption-aws-kms-key-id", "x-amz-server-side-encryption-bucket-key-enabled",
    "x-amz-bucket-object-lock-token", "x-amz-lex-session-state", "x-amzn-code-interpreter-session-id",
    "x-amz-chime-bearer", "x-goog-meta-token", "x-goog-encryption-key",
    "x-goog-encryption-kms-key-name", "x-ms-encryption-key", "x-ms-meta-secret", "x-forwarded-for",
    "x-forwarded-proto", "x-user-agent", "x-keyspace", "x-tokens", "monkey", "author", "x-authority",
]  # fmt: skip


def test_a_header_that_could_log_in_is_a_credential() -> None:
    assert [name for name in CREDENTIALS if not is_credential_header(name.lower().encode())] == []


def test_a_header_that_others_need_is_none() -> None:
    assert [name for name in HARMLESS if is_credential_header(name.encode())] == []


def test_a_long_name_is_judged_like_a_short_one() -> None:
    assert is_credential_header(b"x-" + b"a" * 1000 + b"-token")
    assert not is_credential_header(b"x-" + b"a" * 1000)


REFUSED = [
    "access_token", "api_token", "auth_token", "bearer_token", "deploy_token", "id_token", "job_token",
    "oauth_token", "private_token", "personal_access_token", "refresh_token", "session_token", "token",
    "user_token", "x_access_token", "x_auth_token", "jwt", "bearer", "access_key", "api_key", "app_key",
    "auth_key", "key", "private_key", "secret_key", "subscription_key", "x_api_key", "api_secret",
    "app_secret", "client_secret", "consumer_secret", "secret", "client_assertion", "auth",
    "authorization", "credential", "credentials", "passwd", "password", "pwd", "jsessionid",
    "phpsessid", "sig", "signature", "hmac", "oauth_signature", "aws_access_key_id", "google_access_id",
    "x_amz_signature", "x_amz_credential", "x_amz_security_token", "x_goog_signature",
    "x_goog_credential", "sessionid", "SESSIONID", "x-sessionid", "login_token", "loginToken",
    "user_key", "USER-KEY", "security_token", "hapikey", "auth_password", "license_key", "licenseKey",
    "web_token", "csrf_token", "q-signature", "OSSAccessKeyId", "x-authorization",
    "reset_password_token", "%75ser_key", "us%2565r_key", "a=1&login_token", "a=1;hapikey",
    "user_key[]", "user_key%00",
]  # fmt: skip
PASSING = [
    "page_token", "pageToken", "nextPageToken", "next_token", "NextToken", "continuation-token",
    "pagination_token", "syncToken", "$skiptoken", "$deltatoken", "resumptionToken", "starting-token",
    "clientToken", "ClientRequestToken", "blockToken", "rewriteToken", "session_id", "sessionId",
    "SessionID", "keys", "max-keys", "key-marker", "startkey", "projectKey", "spaceKey",
    "partition_key", "userKey", "kmsKeyName", "tokens", "max_tokens", "token_type", "secret_name",
    "password_policy", "author", "design", "assignee", "oauth_scopes", "monkey", "list-type",
    "uploadId", "partNumber", "x-id", "q", "filter[token]",
]  # fmt: skip


def test_a_parameter_that_could_log_in_is_refused() -> None:
    assert [name for name in REFUSED if not credential_in_query(f"{name}=x".encode())] == []
    assert [name for name in REFUSED if not credential_in_query(f"{name}{'&a=1' * 100}".encode())] == []


def test_a_parameter_that_names_a_thing_or_a_place_passes() -> None:
    assert [name for name in PASSING if credential_in_query(f"{name}=access_token".encode())] == []


@pytest.mark.parametrize(
    ("query", "told"),
    [
        (b"accessKEY=x", "parameters that end in 'access_key'"),
        (b"sessionid=x", "sessionid"),
        (b"user-key=x", "user_key"),
        (b"X-Amz-Credential=x", "x_amz_credential"),
        (b"a" * 1000 + b"_token=x", "parameters that end in 'token'"),
    ],
)
def test_it_says_what_to_leave_out_in_words_of_its_own(query: bytes, told: str) -> None:
    assert credential_in_query(query) == told

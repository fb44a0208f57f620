"""The variables every bottle gets: proxy, CA as real tools look for it, and identity. Pure."""

from __future__ import annotations

from typing import Final

from botbottle.core.plan_types import (
    AGENT_PORT_INSIDE,
    HOME_INSIDE,
    PROXY_PORT_INSIDE,
    TRUST_INSIDE,
    USER_INSIDE,
)

PROXY_URL: Final = f"http://127.0.0.1:{PROXY_PORT_INSIDE}"
MCP_URL: Final = f"http://127.0.0.1:{AGENT_PORT_INSIDE}/mcp"
BUNDLE, CA, TRUSTSTORE = (f"{TRUST_INSIDE}/{name}" for name in ("bundle.pem", "ca.pem", "truststore.p12"))
TRUSTSTORE_PASSWORD: Final = "changeit"  # noqa: S105 - Java wants one; the store holds only public certificates
_NO_PROXY = "localhost,127.0.0.1,::1"


def proxy_variables() -> dict[str, str]:
    """Both cases: curl reads http_proxy only in lower case, others only upper case."""
    upper = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), PROXY_URL) | {"NO_PROXY": _NO_PROXY}
    return {
        **upper,
        **{name.lower(): value for name, value in upper.items()},
        "NODE_USE_ENV_PROXY": "1",
        "npm_config_proxy": PROXY_URL,
        "npm_config_https_proxy": PROXY_URL,
        "npm_config_noproxy": _NO_PROXY,
        "JAVA_TOOL_OPTIONS": _java_options(),
    }


def trust_variables() -> dict[str, str]:
    """Tools that replace their roots get the bundle; tools that add to them get only the bottle's CA."""
    replacing = (
        "SSL_CERT_FILE",  # OpenSSL, so Python's ssl and httpx, Ruby, Go, rustls-native-certs, uv
        "CURL_CA_BUNDLE",
        "GIT_SSL_CAINFO",
        "REQUESTS_CA_BUNDLE",
        "PIP_CERT",
        "CARGO_HTTP_CAINFO",
        "AWS_CA_BUNDLE",
        "npm_config_cafile",
        "NIX_SSL_CERT_FILE",
        "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
        "BUNDLE_SSL_CA_CERT",
    )
    adding = ("NODE_EXTRA_CA_CERTS", "DENO_CERT")
    return dict.fromkeys(replacing, BUNDLE) | dict.fromkeys(adding, CA)


def identity_variables() -> dict[str, str]:
    return {"HOME": HOME_INSIDE, "USER": USER_INSIDE, "LOGNAME": USER_INSIDE}


def default_variables() -> dict[str, str]:
    """Defaults that a manifest may change. `run` passes the terminal's own TERM."""
    return {
        "PATH": f"{HOME_INSIDE}/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "SHELL": "/bin/sh",
        "TERM": "xterm-256color",
        **quiet_variables(),
    }


def quiet_variables() -> dict[str, str]:
    """Turn off telemetry and updates: the proxy would refuse them, and drafts would fill the queue."""
    return {
        "DO_NOT_TRACK": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "GEMINI_TELEMETRY_ENABLED": "false",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "NPM_CONFIG_UPDATE_NOTIFIER": "false",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def _java_options() -> str:
    """Java reads no proxy variables; Gradle and Maven are Java too."""
    options = {
        "javax.net.ssl.trustStore": TRUSTSTORE,
        "javax.net.ssl.trustStoreType": "PKCS12",
        "javax.net.ssl.trustStorePassword": TRUSTSTORE_PASSWORD,
        "http.proxyHost": "127.0.0.1",
        "http.proxyPort": f"{PROXY_PORT_INSIDE}",
        "https.proxyHost": "127.0.0.1",
        "https.proxyPort": f"{PROXY_PORT_INSIDE}",
        "http.nonProxyHosts": "localhost|127.*|[::1]",
    }
    return " ".join(f"-D{name}={value}" for name, value in options.items())


# A manifest cannot set these: without them the bottle would not find its proxy, or not trust it.
RESERVED: Final = (
    frozenset(proxy_variables()) | frozenset(trust_variables()) | frozenset(identity_variables())
)

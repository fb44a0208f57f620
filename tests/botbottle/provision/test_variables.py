"""The variables that real tools read."""

import pytest

from botbottle.provision import variables

PROXY = "http://127.0.0.1:9101"
BUNDLE = "/etc/bot-bottle/ca/bundle.pem"


@pytest.mark.parametrize("name", ["http_proxy", "https_proxy", "all_proxy"])
def test_the_proxy_is_named_in_both_cases(name: str) -> None:
    found = variables.proxy_variables()
    assert found[name] == found[name.upper()] == PROXY


def test_loopback_is_reached_directly_because_the_agent_plane_is_there() -> None:
    found = variables.proxy_variables()
    assert found["no_proxy"] == found["NO_PROXY"] == found["npm_config_noproxy"] == "localhost,127.0.0.1,::1"


@pytest.mark.parametrize(
    "name",
    ["SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE", "PIP_CERT",
     "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "npm_config_cafile"],
)  # fmt: skip
def test_tools_that_replace_their_roots_get_all_of_them(name: str) -> None:
    assert variables.trust_variables()[name] == BUNDLE


@pytest.mark.parametrize("name", ["NODE_EXTRA_CA_CERTS", "DENO_CERT"])
def test_tools_that_add_to_their_roots_get_only_the_bottles(name: str) -> None:
    assert variables.trust_variables()[name] == "/etc/bot-bottle/ca/ca.pem"


def test_java_knows_the_store_and_the_proxy() -> None:
    options = variables.proxy_variables()["JAVA_TOOL_OPTIONS"].split()
    assert "-Djavax.net.ssl.trustStore=/etc/bot-bottle/ca/truststore.p12" in options
    assert {"-Dhttp.proxyHost=127.0.0.1", "-Dhttps.proxyHost=127.0.0.1", "-Dhttps.proxyPort=9101"} <= set(
        options
    )
    assert all(option.startswith("-D") for option in options)


def test_what_can_be_set_otherwise_is_not_reserved() -> None:
    assert not variables.RESERVED & variables.default_variables().keys()
    assert {"HOME", "USER", "HTTPS_PROXY", "SSL_CERT_FILE", "JAVA_TOOL_OPTIONS"} <= variables.RESERVED

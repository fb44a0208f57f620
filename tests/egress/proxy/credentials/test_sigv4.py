"""Requests to AWS, signed by the proxy. The expected signatures are those of Amazon's documentation."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from egress.policy.aws_scope import signing_scope
from egress.policy.errors import BadRoute
from egress.policy.routes import Auth, Route
from egress.proxy.credentials.sigv4 import EMPTY_DIGEST, AwsKey, SignedRequest, hashes_the_body, sign
from egress.proxy.errors import Refusal
from tests.support.proxy_harness import Client, Harness, eventually, get, request, running_lab

KEY = AwsKey("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
BUCKET = "examplebucket.s3.amazonaws.com"
MIB = 1024 * 1024
THEN = datetime(2013, 5, 24, tzinfo=UTC)
QUEUE = "sqs.eu-west-1.amazonaws.com"
STORE = "bucket.s3.eu-west-1.amazonaws.com"

Field = tuple[bytes, bytes, bytes]


def fields(**headers: str) -> list[Field]:
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return [(name.lower(), name, value) for name, value in named.items()]


def value(signed: list[Field], name: bytes) -> str:
    [found] = [value for key, _, value in signed if key == name]
    return found.decode()


@pytest.mark.parametrize(
    ("target", "headers", "signature"),
    [
        (
            b"/test.txt",
            {"Range": "bytes=0-9"},
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (b"/?lifecycle", {}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        (b"/?max-keys=2&prefix=J", {}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
        (b"/?prefix=J&max-keys=2", {}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_it_signs_as_amazon_does(target: bytes, headers: dict[str, str], signature: str) -> None:
    sent = fields(**headers, X_Amz_Content_Sha256=EMPTY_DIGEST)
    signed = sign(SignedRequest("GET", BUCKET, target), sent, KEY, "", THEN)
    assert value(signed, b"authorization").endswith(f"Signature={signature}")


def test_what_the_agent_signed_is_replaced() -> None:
    sent = fields(
        Authorization="AWS4-HMAC-SHA256 made up",
        X_Amz_Date="20200101T000000Z",
        X_Amz_Security_Token="made up",
        X_Amz_Target="Service.Action",
    )
    signed = sign(SignedRequest("POST", QUEUE, b"/"), sent, KEY, EMPTY_DIGEST, THEN)
    assert b"made up" not in b"".join(value for *_, value in signed)
    assert value(signed, b"x-amz-date") == "20130524T000000Z"
    assert "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-target," in value(
        signed, b"authorization"
    )


def test_a_session_token_is_sent_and_signed() -> None:
    key = AwsKey.parse("AKID:secret:session:with:colons")
    assert key == AwsKey("AKID", "secret", "session:with:colons")
    signed = sign(SignedRequest("GET", QUEUE, b"/"), [], key, EMPTY_DIGEST, THEN)
    assert value(signed, b"x-amz-security-token") == "session:with:colons"
    assert "x-amz-security-token" in value(signed, b"authorization")


@pytest.mark.parametrize("text", ["", "AKID", "AKID:", ":secret"])
def test_a_secret_of_another_form_is_no_key(text: str) -> None:
    assert AwsKey.parse(text) is None


def test_chunks_signed_by_the_agent_are_refused() -> None:
    sent = fields(X_Amz_Content_Sha256="STREAMING-AWS4-HMAC-SHA256-PAYLOAD")
    with pytest.raises(Refusal, match="payload signing"):
        sign(SignedRequest("PUT", BUCKET, b"/x"), sent, KEY, "", THEN)


@pytest.mark.parametrize(
    ("host", "scope"),
    [
        ("s3.amazonaws.com", ("s3", "us-east-1")),
        ("bucket.s3.eu-west-1.amazonaws.com", ("s3", "eu-west-1")),
        ("s3-eu-west-1.amazonaws.com", ("s3", "eu-west-1")),
        ("bucket.s3.dualstack.us-gov-west-1.amazonaws.com", ("s3", "us-gov-west-1")),
        ("*.s3.eu-west-1.amazonaws.com", ("s3", "eu-west-1")),
        ("sqs.eu-west-1.amazonaws.com", ("sqs", "eu-west-1")),
        ("abc.execute-api.us-east-1.amazonaws.com", ("execute-api", "us-east-1")),
        ("bedrock-runtime.us-east-1.amazonaws.com", ("bedrock", "us-east-1")),
        ("iam.amazonaws.com", ("iam", "us-east-1")),
    ],
)
def test_the_scope_is_read_off_the_host(host: str, scope: tuple[str, str]) -> None:
    assert signing_scope(host) == scope
    assert hashes_the_body(host) == (scope[0] != "s3")


@pytest.mark.parametrize(
    "host", ["example.com", "s3.amazonaws.com.example.com", "*.amazonaws.com", "amazonaws.com"]
)
def test_a_route_to_another_host_cannot_use_it(host: str) -> None:
    with pytest.raises(BadRoute, match="SigV4"):
        Route(host, auth=Auth("SigV4", "AWS"))


# --- through the process


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Harness:
    home: Path = tmp_path_factory.mktemp("aws") / "h"
    with running_lab(home, AWS_KEY="AKID:secret", AWS_BAD="nonsense", EGRESS_MAX_HELD_MIB="17") as lab:
        lab.origins.add(QUEUE, "127.0.0.10", lab.authority.context([QUEUE]))
        lab.origins.add(STORE, "127.0.0.11", lab.authority.context([STORE]))
        yield lab


@pytest.fixture(autouse=True)
def published(request: pytest.FixtureRequest) -> None:
    if "lab" in request.fixturenames:
        publish(request.getfixturevalue("lab"), "AWS_KEY")


def publish(lab: Harness, name: str) -> None:
    auth = {"scheme": "SigV4", "token_ref": name}
    lab.reset()
    lab.publish(
        "agent-a",
        [
            {"host": QUEUE, "auth": auth, "pinned_addresses": ["127.0.0.10"]},
            {"host": STORE, "auth": auth, "pinned_addresses": ["127.0.0.11"], "dlp": {"out": False}},
        ],
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (["Content-Length: 5"], b"hello"),
        (["Transfer-Encoding: chunked"], b"3\r\nhel\r\n2\r\nlo\r\n0\r\nX-T: 1\r\n\r\n"),
    ],
)
def test_a_body_is_hashed_before_it_is_sent(lab: Harness, headers: list[str], body: bytes) -> None:
    client = lab.secured(QUEUE)
    message = request("POST", "/", QUEUE, "Authorization: AWS4-HMAC-SHA256 made up", *headers, body=body)
    assert client.ask(message + get("/next", QUEUE)).status == 200
    assert client.answer().json["target"] == "/next"
    seen = lab.requests[0]
    assert (bytes(seen.body), seen.values("content-length")) == (b"hello", ["5"])
    assert seen.values("x-amz-content-sha256") == [hashlib.sha256(b"hello").hexdigest()]
    assert seen.values("authorization")[0].startswith("AWS4-HMAC-SHA256 Credential=AKID/")


@pytest.mark.process
def test_only_so_much_of_all_bodies_is_held_at_once(lab: Harness) -> None:
    large, small = (
        request("POST", "/", QUEUE, f"Content-Length: {12 * MIB}", body=bytes(sent * MIB)) for sent in (11, 6)
    )
    first, second = lab.secured(QUEUE), lab.secured(QUEUE)
    first.send(large)
    eventually(lambda: _held_bytes(lab) == 11 * MIB, "the first body")
    second.send(small + bytes(1000))
    answer = second.answer()
    assert (answer.status, answer.reason) == (503, "too-much-held")
    ends = lambda: [(each["verdict"], each["reason"]) for each in lab.records()]  # noqa: E731
    eventually(lambda: ("refused", "too-much-held") in ends(), "its record")
    first.close()
    eventually(lambda: _held_bytes(lab) == 0, "its end")


def _held_bytes(lab: Harness) -> int:
    return int(lab.control("GET", "/status")["bottles"]["agent-a"]["held_bytes"])


@pytest.mark.process
def test_an_upload_to_s3_streams(lab: Harness) -> None:
    client = lab.secured(STORE)
    client.send(request("PUT", "/key", STORE, "Content-Length: 10", body=b"hello"))
    eventually(lambda: lab.requests and lab.requests[0].body == b"hello", "the first half")
    assert client.ask(b"world").status == 200
    assert lab.requests[0].values("x-amz-content-sha256") == ["UNSIGNED-PAYLOAD"]


@pytest.mark.process
@pytest.mark.parametrize(
    "query",
    [
        "X-Amz-Signature=1",
        "a=b&x-amz-credential=1",
        "X-Amz-Sign%61ture=1",
        "X%2DAmz%252DSecurity-Token=1",
        "AWSAccessKeyId=1&Signature=1",
    ],
)
def test_a_presigned_url_is_refused(lab: Harness, query: str) -> None:
    answer = lab.secured(STORE).ask(get(f"/x?{query}", STORE))
    assert (answer.reason, "presigned" in answer.json["message"]) == ("credential-in-url", True)
    assert lab.requests == []


@pytest.mark.process
@pytest.mark.parametrize("name", ["X-Amz-Copy-Source", "x_amz_copy_source", "X-Amz-Rename-Source"])
@pytest.mark.parametrize("limits", [{"path_allowlist": ["/allowed"]}, {}])
def test_it_signs_no_copy_of_another_object(lab: Harness, name: str, limits: dict[str, list[str]]) -> None:
    """Without a limit of paths too: the source can be in another bucket, which is another host."""
    route = {"host": STORE, "auth": {"scheme": "SigV4", "token_ref": "AWS_KEY"}, **limits}
    lab.publish("agent-a", [{**route, "pinned_addresses": ["127.0.0.11"]}])
    answer = lab.secured(STORE).ask(request("PUT", "/allowed/x", STORE, f"{name}: /other-bucket/key"))
    assert (answer.status, answer.reason) == (403, "second-path")
    assert lab.requests == []


@pytest.mark.process
def test_it_tells_a_waiting_client_to_go_on(lab: Harness) -> None:
    client = lab.secured(QUEUE)
    client.send(request("POST", "/", QUEUE, "Content-Length: 2", "Expect: 100-continue"))
    assert client.answer().status == 100
    assert client.ask(b"ok").json["body"] == "ok"
    assert lab.requests[0].values("expect") == []


@pytest.mark.process
def test_a_revoke_stops_a_request_whose_body_is_still_coming(lab: Harness) -> None:
    client = half_sent(lab)
    lab.publish("agent-a", [])
    with suppress(OSError):
        client.send(b"world")
    assert client.everything() == b""
    assert lab.requests == []


@pytest.mark.process
def test_a_key_that_is_taken_away_while_the_body_comes_is_not_used(lab: Harness) -> None:
    key = lab.home / "secrets" / "AWS_LENT"
    key.parent.mkdir(exist_ok=True)
    key.write_text("AKID:secret")
    key.chmod(0o600)
    publish(lab, "AWS_LENT")
    client = half_sent(lab)
    key.unlink()
    assert client.ask(b"world").reason == "credential-missing"
    assert lab.requests == []


def half_sent(lab: Harness) -> Client:
    """A request that was decided, with the first half of its body."""
    client = lab.secured(QUEUE)
    client.send(request("POST", "/", QUEUE, "Content-Length: 10", body=b"hello"))
    status = lambda: lab.control("GET", "/status")["bottles"]["agent-a"]  # noqa: E731
    eventually(lambda: status()["flows"] == 1, "the request under way")
    return client


@pytest.mark.process
def test_a_key_of_another_form_fails_closed(lab: Harness) -> None:
    publish(lab, "AWS_BAD")
    assert lab.secured(QUEUE).ask(get("/", QUEUE)).reason == "credential-missing"
    assert lab.requests == []


@pytest.mark.process
def test_a_body_that_is_too_large_to_hold_is_refused(lab: Harness) -> None:
    client = lab.secured(QUEUE)
    client.send(request("POST", "/", QUEUE, "Content-Length: 20000000"))
    for _ in range(17):
        client.send(b"x" * 1024 * 1024)
    assert client.answer().status == 413
    assert lab.requests == []

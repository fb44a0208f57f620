"""JSON-RPC framing: what is not a message is refused with a reason; hostile text is never echoed raw."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervise.mcp import jsonrpc
from supervise.mcp.jsonrpc import ProtocolError

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"a": 1} trailing', "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b'\xef\xbb\xbf{"jsonrpc": "2.0"}', "not JSON"),
        (b'{"a": NaN}', "number that JSON does not allow"),
        (b'{"a": Infinity}', "number that JSON does not allow"),
        (b'{"a": 1e400}', "number that JSON does not allow"),
        (b"1" * 5000, "number that JSON does not allow"),
        (b"[" * 200_000, "nested too deeply"),
    ],
)
def test_it_refuses_a_body_that_is_not_json(body: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason) as refusal:
        jsonrpc.decode(body)
    assert refusal.value.code == -32700
    assert refusal.value.http_status == 400
    assert refusal.value.as_response()["id"] is None


@pytest.mark.parametrize(
    ("message", "code", "request_id"),
    [
        ("text", -32600, None),
        (7, -32600, None),
        (None, -32600, None),
        ({}, -32600, None),
        ({"id": 1, "method": "ping"}, -32600, 1),
        ({"jsonrpc": "1.0", "id": 1, "method": "ping"}, -32600, 1),
        ({"jsonrpc": 2.0, "id": 1, "method": "ping"}, -32600, 1),
        ({"jsonrpc": "2.0", "id": None, "method": "ping"}, -32600, None),
        ({"jsonrpc": "2.0", "id": 1.5, "method": "ping"}, -32600, None),
        ({"jsonrpc": "2.0", "id": True, "method": "ping"}, -32600, None),
        ({"jsonrpc": "2.0", "id": [1], "method": "ping"}, -32600, None),
        ({"jsonrpc": "2.0", "id": "x"}, -32600, "x"),
        ({"jsonrpc": "2.0", "id": 1, "method": ""}, -32600, 1),
        ({"jsonrpc": "2.0", "id": 1, "method": 5}, -32600, 1),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}, -32602, 1),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": "x"}, -32602, 1),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": 0}, -32602, 1),
    ],
)
def test_it_refuses_a_value_that_is_not_a_message(
    message: object, code: int, request_id: str | int | None
) -> None:
    with pytest.raises(ProtocolError) as refusal:
        jsonrpc.read_envelope(message)
    assert refusal.value.code == code
    assert refusal.value.as_response()["id"] == request_id


@pytest.mark.parametrize("request_id", [0, -1, 1, 10**30, "", "a", "\ud800"])
def test_it_keeps_the_request_id_as_sent(request_id: str | int) -> None:
    envelope = jsonrpc.read_envelope({"jsonrpc": "2.0", "id": request_id, "method": "ping"})
    assert envelope.id == request_id
    assert not envelope.is_notification
    assert json.loads(jsonrpc.encode(jsonrpc.result_response(request_id, {})))["id"] == request_id


def test_it_takes_a_message_without_id_as_a_notification() -> None:
    assert jsonrpc.read_envelope({"jsonrpc": "2.0", "method": "notifications/initialized"}).is_notification


def test_it_takes_null_params_as_none() -> None:
    assert jsonrpc.read_envelope({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": None}).params == {}


@pytest.mark.parametrize("answer", [{"result": {}}, {"error": {"code": 1, "message": "x"}}])
def test_it_tells_an_answer_from_a_request(answer: dict[str, object]) -> None:
    with pytest.raises(jsonrpc.ClientResponse):
        jsonrpc.read_envelope({"jsonrpc": "2.0", "id": 1, **answer})


def test_it_writes_hostile_text_as_ascii_on_one_line() -> None:
    hostile = "\x1b[31m\u202e\x00</script>\r\ndata: x\u2028\ud800"
    encoded = jsonrpc.encode({"text": hostile})
    assert encoded.isascii()
    assert not any(byte < 0x20 for byte in encoded)
    assert json.loads(encoded)["text"] == hostile


def test_an_error_leaves_an_unknown_id_out_only_in_the_modern_era() -> None:
    assert ProtocolError(-32600, "no").as_response()["id"] is None
    assert "id" not in ProtocolError(-32600, "no", modern=True).as_response()


@given(JSON_VALUES)
def test_any_json_value_is_a_message_or_a_clear_refusal(value: object) -> None:
    decoded = jsonrpc.decode(json.dumps(value).encode())
    try:
        jsonrpc.read_envelope(decoded)
    except ProtocolError as refusal:
        assert refusal.code in (-32600, -32602)
        assert refusal.message
    except jsonrpc.ClientResponse:
        pass


@given(st.binary(max_size=200))
def test_any_bytes_are_json_or_a_parse_error(body: bytes) -> None:
    try:
        jsonrpc.decode(body)
    except ProtocolError as refusal:
        assert refusal.code == -32700


@given(JSON_VALUES, st.sampled_from([{}, {"jsonrpc": "2.0", "id": 'é"1'}, {"id": 7}]))
def test_a_prepared_result_is_sent_as_any_other(value: object, envelope: dict[str, object]) -> None:
    result = {"tools": value}
    for message in ({**envelope, "result": result}, {"result": result, **envelope}):
        prepared = {**message, "result": jsonrpc.Prepared(result)}
        assert json.loads(jsonrpc.encode(prepared)) == message
        assert jsonrpc.encode([prepared]) == jsonrpc.encode([message])
        assert jsonrpc.encode({**envelope, "result": prepared["result"]}) == jsonrpc.encode(
            {**envelope, "result": result}
        )

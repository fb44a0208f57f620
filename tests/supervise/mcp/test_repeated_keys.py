"""A body that two readers could read differently is refused."""

import pytest

from supervise.mcp.jsonrpc import ProtocolError, decode


@pytest.mark.parametrize(
    "body",
    [
        b'{"method": "ping", "method": "tools/call"}',
        b'{"params": {"name": "a", "name": "b"}}',
        b'{"a": [{"b": 1, "b": 1}]}',
    ],
)
def test_it_refuses_an_object_with_the_same_key_twice(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="same key twice"):
        decode(body)

"""Which IP addresses a bottle may never be connected to unless an operator pinned the route to them.

Trust boundary: DNS answers are hostile. The tables are explicit because `ipaddress.is_private` and its
siblings change meaning between Python releases.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_METADATA = {
    ip_address(text)
    for text in (
        "169.254.169.254",  # most clouds
        "169.254.170.2",  # container credentials on AWS
        "169.254.170.23",
        "168.63.129.16",  # Azure's wire server: looks public
        "100.100.100.200",  # Alibaba
        "192.0.0.192",  # Oracle
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",  # Google
    )
}

_FORBIDDEN_V4 = tuple(
    (IPv4Network(network), reason)
    for network, reason in (
        ("0.0.0.0/8", "an unspecified address"),
        ("10.0.0.0/8", "a private address"),
        ("100.64.0.0/10", "a carrier-grade NAT address"),
        ("127.0.0.0/8", "a loopback address"),
        ("169.254.0.0/16", "a link-local address"),
        ("172.16.0.0/12", "a private address"),
        ("192.0.0.0/24", "a reserved address"),
        ("192.0.2.0/24", "a documentation address"),
        ("192.88.99.0/24", "a 6to4 relay address"),
        ("192.168.0.0/16", "a private address"),
        ("198.18.0.0/15", "a benchmarking address"),
        ("198.51.100.0/24", "a documentation address"),
        ("203.0.113.0/24", "a documentation address"),
        ("224.0.0.0/4", "a multicast address"),
        ("240.0.0.0/4", "a reserved address"),
    )
)

_FORBIDDEN_V6 = tuple(
    (IPv6Network(network), reason)
    for network, reason in (
        ("::/128", "an unspecified address"),
        ("::1/128", "a loopback address"),
        ("::/96", "an IPv4-compatible address"),
        ("::ffff:0:0/96", "an IPv4-mapped address"),
        ("::ffff:0:0:0/96", "an IPv4-translated address"),
        ("64:ff9b:1::/48", "a local NAT64 address"),
        ("100::/64", "a discard address"),
        ("2001::/32", "a Teredo address"),
        ("2001::/23", "a reserved address"),
        ("2001:db8::/32", "a documentation address"),
        ("2002::/16", "a 6to4 address"),
        ("3fff::/20", "a documentation address"),
        ("fc00::/7", "a private address"),
        ("fe80::/10", "a link-local address"),
        ("fec0::/10", "a private address"),
        ("ff00::/8", "a multicast address"),
    )
)

_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")


def is_forbidden_address(ip: str | Address, *, nat64: bool = False) -> str | None:
    """Return why this address must not be dialled, or None. An unreadable address is forbidden.

    IPv4-mapped, NAT64, 6to4 and Teredo addresses are refused whatever they embed. If `nat64` is the path to
    the IPv4 internet, as on hosts with IPv6 only, its well-known prefix is judged by the embedded IPv4
    address; the local-use prefix is not, because its layout is unknown.
    """
    try:
        address = ip_address(ip)
    except ValueError:
        return "not an IP address"
    if address in _METADATA:
        return "a cloud metadata address"
    if isinstance(address, IPv4Address):
        return next((reason for network, reason in _FORBIDDEN_V4 if address in network), None)
    return _forbidden_v6(address, nat64=nat64)


def in_networks(ip: str | Address, networks: Iterable[Network]) -> bool:
    """Whether the address, or the IPv4 address that NAT64 embeds in it, is in one of the networks."""
    return any(address in network for address in {ip_address(ip), embedded(ip)} for network in networks)


def embedded(ip: str | Address) -> Address:
    """The IPv4 address embedded under the well-known NAT64 prefix; any other address unchanged."""
    address = ip_address(ip)
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address


def _forbidden_v6(address: IPv6Address, *, nat64: bool) -> str | None:
    if address.scope_id is not None:
        return "an address with a zone"
    if address in _NAT64:
        inner = is_forbidden_address(embedded(address))
        if inner is not None:
            return f"a NAT64 address of {inner}"
        return None if nat64 else "a NAT64 address, and EGRESS_NAT64 is off"
    for network, reason in _FORBIDDEN_V6:
        if address in network:
            return reason
    return None if address in _GLOBAL_UNICAST else "a reserved address"

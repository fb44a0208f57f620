"""The AWS service and region of a hostname, as a signature names them. Pure."""

from __future__ import annotations

import re

from egress.policy.errors import BadRoute, quoted

_REGION = r"[a-z]{2}(?:-[a-z]+)+-[0-9]"
_S3 = re.compile(rf"(?:.+\.)?s3(?:-accesspoint)?[.-](?:dualstack\.)?({_REGION})\.amazonaws\.com")
_GLOBAL_S3 = re.compile(r"(?:.+\.)?s3\.amazonaws\.com")
_REGIONAL = re.compile(rf"(?:.+\.)?([a-z0-9-]+)\.({_REGION})\.amazonaws\.com")
_GLOBAL = re.compile(r"([a-z0-9-]+)\.amazonaws\.com")
# services whose name in the host differs from the one in the signature
_SIGNING_NAMES = {
    "bedrock-runtime": "bedrock",
    "bedrock-agent": "bedrock",
    "bedrock-agent-runtime": "bedrock",
    "email": "ses",
}


def signing_scope(host_or_pattern: str) -> tuple[str, str]:
    """Return service and region. Raises BadRoute for a host that does not belong to AWS."""
    host = host_or_pattern.removeprefix("*.")
    if match := _S3.fullmatch(host):
        return "s3", match[1]
    if _GLOBAL_S3.fullmatch(host):
        return "s3", "us-east-1"
    if match := _REGIONAL.fullmatch(host):
        return _SIGNING_NAMES.get(match[1], match[1]), match[2]
    if match := _GLOBAL.fullmatch(host):
        return match[1], "us-east-1"
    raise BadRoute(
        f"the scheme SigV4 is for hosts such as s3.eu-west-1.amazonaws.com: got {quoted(host_or_pattern)}"
    )

"""A small real OpenID Connect provider; as a program it serves on a given port until it is ended."""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT = "bot-bottle"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Provider:
    """Knows one person, and tells of them what `claims` and `token` say."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host = host
        self.claims: dict[str, Any] = {
            "sub": "248289761001",
            "preferred_username": "Olivia",
            "groups": ["ops"],
        }
        self.token: dict[str, Any] = {}
        self.key, self.algorithm = KEY, "RS256"
        self.published: dict[str, Any] = {}
        self.asked: dict[str, Any] = {}
        self.redeemed: dict[str, str] = {}
        self.is_broken = False
        self.server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())

    @property
    def issuer(self) -> str:
        return f"http://{self.host}:{self.server.server_address[1]}"

    def answer(self, path: str, body: str) -> tuple[int, Any]:
        if self.is_broken:
            return 500, {}
        match path:
            case "/.well-known/openid-configuration":
                names = ("authorization", "token", "userinfo")
                found = {f"{name}_endpoint": f"{self.issuer}/{name}" for name in names}
                keys = {"jwks_uri": f"{self.issuer}/jwks", "issuer": self.issuer}
                return 200, {**found, **keys, **self.published}
            case "/token":
                self.redeemed = dict(parse_qsl(body))
                return 200, {"id_token": self._id_token(), "access_token": "access", "token_type": "Bearer"}
            case "/userinfo":
                return 200, self.claims
            case "/jwks":
                public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
                return 200, {"keys": [{**public, "kid": "one", "alg": "RS256", "use": "sig"}]}
        return 404, {}

    def _id_token(self) -> str:
        now = int(time.time())
        usual = {
            "iss": self.issuer, "aud": CLIENT, "sub": "248289761001", "iat": now, "exp": now + 300,
            "nonce": self.asked.get("nonce"),
        }  # fmt: skip
        token = {key: value for key, value in {**usual, **self.token}.items() if value is not None}
        if self.algorithm == "none":
            return jwt.encode(token, None, algorithm="none", headers={"kid": "one"})
        return jwt.encode(token, self.key, algorithm=self.algorithm, headers={"kid": "one"})

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.startswith("/authorization"):
                    self._send_back()
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                status, plain = provider.answer(urlsplit(self.path).path, body)
                text = json.dumps(plain).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_POST = do_GET

            def _send_back(self) -> None:
                """The person has said who they are."""
                provider.asked = dict(parse_qsl(urlsplit(self.path).query))
                answer = urlencode({"code": "a-code", "state": provider.asked["state"]})
                self.send_response(302)
                self.send_header("Location", f"{provider.asked['redirect_uri']}?{answer}")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        return Handler


if __name__ == "__main__":
    running = Provider("localhost", int(sys.argv[1]))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    running.server.serve_forever()

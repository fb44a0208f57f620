"""A TLS origin as its own process: answers every GET with its path. Arguments: certificate file, address."""

import ssl
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = f"the origin answers for {self.path}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


certificate, address = sys.argv[1:]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate)
server = ThreadingHTTPServer((address, 443), Answer)
server.socket = context.wrap_socket(server.socket, server_side=True)
sys.stdout.write("ready\n")
sys.stdout.flush()
server.serve_forever()

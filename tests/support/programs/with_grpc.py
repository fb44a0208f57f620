"""One unary call and one stream to `argv[1]`; the proxy and the authorities come from the environment."""

import json
import sys

import grpc

with grpc.secure_channel(sys.argv[1], grpc.ssl_channel_credentials()) as channel:
    try:
        echoed = channel.unary_unary("/lab.Lab/Echo")(b"abc", timeout=60)
        counted = list(channel.unary_stream("/lab.Lab/Count")(b"1000", timeout=60))
        told = {"echo": echoed.decode(), "count": len(counted), "last": counted[-1].decode()}
    except grpc.RpcError as error:
        told = {"code": error.code().name, "details": error.details()}
sys.stdout.write(json.dumps(told))

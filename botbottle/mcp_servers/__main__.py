"""`python -m botbottle.mcp_servers`: the host process; what it is to do comes on standard input."""

from botbottle.mcp_servers.host import main

main()

"""`python -m botbottle.mcp_servers`: the host process. It reads its order from standard input."""

from botbottle.mcp_servers.host import main

main()

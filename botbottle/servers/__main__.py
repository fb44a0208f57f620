"""`python -m botbottle.servers`: the host process; what it is to do comes on standard input."""

from .host import main

main()

"""The parts of `make demo`, all on loopback: a small internet, and an agent that follows a script."""

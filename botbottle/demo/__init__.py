"""What `make demo` shows, all of it on loopback: a small internet, and an agent that follows a script."""

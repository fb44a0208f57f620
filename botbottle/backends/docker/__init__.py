"""Bottles as containers of a Docker engine, or of podman, on this host."""

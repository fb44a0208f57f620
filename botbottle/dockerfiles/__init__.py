"""Agents' Dockerfiles: whether one parses, and which ones are given to an engine to build. Pure."""

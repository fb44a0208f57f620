"""Dockerfiles that agents wrote: whether one parses, and which are given to an engine to build. Pure."""

"""From a manifest to a running program, without Django."""

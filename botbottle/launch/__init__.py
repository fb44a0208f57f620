"""From a manifest to a running program. No Django."""

"""TLS on both sides of an inspected connection."""

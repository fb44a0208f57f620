"""Secrets that the proxy adds to requests, and names by which an agent could bring its own."""

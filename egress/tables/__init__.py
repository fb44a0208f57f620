"""Versioned route tables in the database, and how the proxy gets them."""

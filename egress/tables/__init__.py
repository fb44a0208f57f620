"""Versioned route tables in the database, the homes they belong to, and their publication to the proxy."""

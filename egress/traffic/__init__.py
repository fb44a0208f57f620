"""The proxy's records, read into the database."""

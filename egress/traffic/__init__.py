"""The import of the proxy's records into the database, and the health of its processes."""

"""Django's SQLite backend for a process with many threads that write: see `base`."""

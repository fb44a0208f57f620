"""The web process: its listeners and planes, its threads, and what keeps one bottle from blocking others."""

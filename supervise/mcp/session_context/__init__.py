"""The session context: what a bottle learns about itself when a session begins."""

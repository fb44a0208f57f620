"""What a bottle is told about itself when a session begins."""

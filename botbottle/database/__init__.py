"""The database under pressure: faults in one sentence, room on a full disk, writers that take turns."""

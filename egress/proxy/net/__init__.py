"""Connections: their buffers and deadlines, how they are dialled, and how idle ones are kept."""

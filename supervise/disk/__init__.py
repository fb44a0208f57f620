"""The room on this home's disk: watched, shared out, and explained when it is short."""

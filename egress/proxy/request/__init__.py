"""One request from its arrival to its record: who asks, what is allowed, where it goes, what comes back."""

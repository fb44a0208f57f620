"""What the proxy knows between requests: its bottles, their limits, open connections and records."""

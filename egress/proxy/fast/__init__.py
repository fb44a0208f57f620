"""The fast path for simple repeated requests. Without it the proxy behaves the same."""

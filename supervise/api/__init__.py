"""The operator API, on the operator plane only."""

"""Data loss prevention: finds secrets in what leaves a bottle, and covers them in what comes back. Pure."""

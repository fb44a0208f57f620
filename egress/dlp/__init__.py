"""Data loss prevention: finds secrets in what leaves a bottle, and masks them in what comes back. Pure."""

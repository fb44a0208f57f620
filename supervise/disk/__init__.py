"""The space on this home's disk: watched, measured by bottle, and explained when it is short."""

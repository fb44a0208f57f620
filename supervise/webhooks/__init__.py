"""Messages to receivers outside: at least once each, and in nobody's way."""

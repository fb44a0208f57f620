"""Messages to receivers outside: each is delivered at least once, and delays nothing else."""

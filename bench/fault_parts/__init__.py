"""The parts of bench/faults.py: an installation that can be hurt, a load, the faults, the final check."""

"""What a bottle may reach."""

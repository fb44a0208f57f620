"""What goes into a bottle, the same for every backend."""

"""What goes into every bottle, the same for every backend."""

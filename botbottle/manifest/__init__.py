"""The operator's file that says what a bottle is."""

"""The kinds of proposals, one file for each."""

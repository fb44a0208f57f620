"""The manifest: the operator's file that defines a bottle."""

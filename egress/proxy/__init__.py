"""The data plane: the only process that talks to the internet for bottles. Imports no Django."""

"""The files that the control plane and the data plane agree on. Pure."""

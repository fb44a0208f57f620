"""The processes of the data plane: the parent, its workers, their sockets, and the control socket."""

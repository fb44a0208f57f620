"""What a bottle may reach: names, paths, routes, and the one decision about a request. Pure."""

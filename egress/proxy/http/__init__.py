"""HTTP/1 as the proxy reads and writes it: strictly, within bounds."""

"""The operator's pages, forms and websockets."""

"""A policy behind HTTP: its file, the interface, keys, the page. Nothing the library needs."""

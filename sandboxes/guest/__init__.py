"""Code that runs inside a sandbox, started by path: it imports only the standard library and its siblings."""

"""Tools of OpenAPI documents: `tools` makes them, from `documents` and `operations`; `encoding` writes a request."""

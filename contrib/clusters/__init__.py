"""Several hosts, and the weights between them."""

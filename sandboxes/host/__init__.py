"""The backend "namespace": what the host does around the code in `sandboxes/guest`."""

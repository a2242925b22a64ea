"""The backends "namespace" and "subprocess": what the host does around the code in `sandboxes/guest`."""

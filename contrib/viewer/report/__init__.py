"""The figures and tables of a training run, made from its folder alone: for its page, and for `report --text`."""

"""report.html: what a training run did, on one page, made from its folder alone."""

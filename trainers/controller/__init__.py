"""The controller of a policy-gradient run: which groups are sampled, which are trained on, and when."""

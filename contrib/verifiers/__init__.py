"""Environments of the package verifiers, `verifiers:ID`, in an interpreter of their own."""

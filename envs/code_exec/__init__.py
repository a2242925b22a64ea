"""code_exec: Python in a sandbox, and programs that hidden tests grade."""

from envs.code_exec.env import CodeExec, extract_code

__all__ = ["CodeExec", "extract_code"]

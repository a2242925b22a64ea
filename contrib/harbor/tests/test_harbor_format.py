"""task.toml is read as Harbor's own model reads it (`test_harbor_runner`); differences that are meant have a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrib.harbor.config import read_task
from contrib.harbor.tests.playing import write_task
from forge_env.core.errors import UserError

EXAMPLES = Path(__file__).parents[3] / "contrib" / "harbor" / "examples"

_SERVER = "[[environment.mcp_servers]]\nname = 'a'\n"

READ = {
    "nothing": "",
    "a name": "[task]\nname = 'org/name'\nversion = '1'\nauthors = [{name = 'x', email = 'y'}]\nkeywords = ['k']",
    "older versions": "version = '1.0'\n[environment]\nmemory = '2G'\nallow_internet = false\nos = 'Linux'",
    "equal sizes": "[environment]\nmemory = '2G'\nmemory_mb = 2048",
    "hosts": "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['*.a.org', 'b.org', '10.0.0.7']",
    "no hosts": "[environment]\nnetwork_mode = 'allowlist'",
    "a step": "[[steps]]\nname = 'a b'\nmin_reward = {reward = 0.5}",
    "strategy": "multi_step_reward_strategy = 'final'",
    "artefacts": "artifacts = ['/a', '/a', {source = '/b', destination = 'c/d', exclude = ['*.pyc']}]",
    "separate": "[verifier]\nenvironment_mode = 'separate'\nuser = 5\n[verifier.environment]\ncpus = 1.5",
    "health": "[environment.healthcheck]\ncommand = 'true'",
    "collect": "[[verifier.collect]]\ncommand = 'true'",
    "a server": f"{_SERVER}transport = 'stdio'\ncommand = 'python3'\nargs = ['/srv/server.py']",
    "servers elsewhere": f"{_SERVER}url = 'https://a.org/sse'\nheaders = {{Authorization = 'Bearer ${{TOKEN}}'}}\n"
    f"{_SERVER}transport = 'http'\nurl = 'http://a.org'\n"
    "[agent]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a.org']",
}
REFUSED = {
    "no name": "[task]\ndescription = 'x'",
    "a plain name": "[task]\nname = 'plain'",
    "dots in a name": "[task]\nname = 'org/na..me'",
    "authors": "[task]\nname = 'a/b'\nauthors = ['x']",
    "an empty version": "[task]\nname = 'a/b'\nversion = ''",
    "shared and separate": "[verifier]\nenvironment_mode = 'shared'\n[verifier.environment]\ncpus = 1",
    "an absolute destination": "artifacts = [{source = '/a', destination = '/b'}]",
    "a destination outside": "artifacts = [{source = '/a', destination = '../b'}]",
    "the manifest": "artifacts = [{source = '/a', destination = 'manifest.json'}]",
    "backslashes": "artifacts = [{source = '/a', destination = 'a\\\\b'}]",
    "a source outside": "artifacts = ['../a']",
    "a port": "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a.org:80']",
    "a scheme": "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['http://a.org']",
    "a star within": "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a*.org']",
    "hosts of a public network": "[environment]\nallowed_hosts = ['a.org']",
    "hosts without a mode": "[agent]\nallowed_hosts = []",
    "a mode": "[environment]\nnetwork_mode = 'some'",
    "cpus": "[environment]\ncpus = nan",
    "two sizes": "[environment]\nmemory = '2G'\nmemory_mb = 1",
    "a size": "[environment]\nmemory = '2GB'",
    "a time": "[agent]\ntimeout_sec = 'long'",
    "the same step": "[[steps]]\nname = 'a'\n[[steps]]\nname = 'A'",
    "a device as a step": "[[steps]]\nname = 'con'",
    "a path as a step": "[[steps]]\nname = 'a/b'",
    "a step without a name": "[[steps]]\nname = ' '",
    "a strategy": "multi_step_reward_strategy = 'max'",
    "no command": "[environment.healthcheck]\nretries = 1",
    "a system": "[environment]\nos = 'mac'",
    "a server without a command": f"{_SERVER}transport = 'stdio'",
    "a server without a url": f"{_SERVER}transport = 'sse'",
    "a server that is started, with headers": f"{_SERVER}transport = 'stdio'\ncommand = 'x'\nheaders = {{a = 'b'}}",
    "a transport": f"{_SERVER}transport = 'pipe'\nurl = 'http://a.org'",
    "a number in the environment": "[environment.env]\nA = 1",
}
ONLY_OURS = {
    "unknown fields are named": "[agent]\ntimeout = 3",
    "unknown fields of a package, too": "[task]\nname = 'a/b'\nnom = 'x'",
    "a newer version": "schema_version = '9.0'",
    "a number as a size": "[environment]\nmemory = 2048",
    "ranges": "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['10.0.0.0/8']",
    "devices": "[environment]\ngpus = 1",
    "no time": "[agent]\ntimeout_sec = nan",
    "a size below 0": "[environment]\nstorage_mb = -1",
    "servers on the loopback": f"{_SERVER}url = 'http://127.0.0.1:1'",
    "servers that are not reached": f"{_SERVER}url = 'http://a.org'\n[agent]\nnetwork_mode = 'no-network'",
}
"""What we refuse and Harbor reads."""


@pytest.mark.parametrize("toml", READ.values(), ids=READ.keys())
def test_what_harbor_reads_is_read(tmp_path: Path, toml: str) -> None:
    read_task(write_task(tmp_path / "task", toml))


@pytest.mark.parametrize("toml", [*REFUSED.values(), *ONLY_OURS.values()], ids=[*REFUSED, *ONLY_OURS])
def test_what_harbor_refuses_is_one_sentence(tmp_path: Path, toml: str) -> None:
    with pytest.raises(UserError) as error:
        read_task(write_task(tmp_path / "task", toml))
    assert str(error.value).startswith(str(tmp_path)) and "\n" not in str(error.value)

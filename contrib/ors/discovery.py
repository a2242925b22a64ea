"""What a server offers, asked before any episode: its environments, their splits and their tasks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import httpx

from contrib.common.http_clients import connection
from contrib.common.json_text import decoded, read
from contrib.ors.access import Access
from forge_env.core.errors import EnvError, ServiceError, TooFewTasks, UserError, nearest

SECONDS = 60.0
"""Time limit of one answer; a list of tasks may be long."""
_FEW = 64
"""Tasks that are asked for one by one, where a split has many more."""


class Discovery:
    """Blocking requests without a session. Use it in a `with` block."""

    def __init__(self, access: Access) -> None:
        self._access = access
        url = access.url
        self._client = httpx.Client(base_url=url, headers=access.headers, timeout=SECONDS, **connection(url))

    def __enter__(self) -> Discovery:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def environment(self, env_name: str) -> str:
        """Return the name of an environment; `env_name` may be empty where the server has one only."""
        names = self._json("GET", "/list_environments")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise UserError(f"{self._access.url} is no ORS server: it lists its environments as {str(names)[:100]!r}")
        if env_name and env_name.lower() not in names:
            raise UserError(f"{self._access.url} has no environment {env_name!r}. {nearest(env_name, names)}")
        if not env_name and len(names) > 1:
            raise UserError(
                f"{self._access.url} has the environments {', '.join(names)}: choose one, as --option "
                f"environment={names[0]}"
            )
        return env_name.lower() or str(names[0])

    def tools(self, environment: str) -> Any:
        """Return the tools of an environment, without those of a task; None if they are told in sessions only."""
        return self._json("GET", f"/{environment}/tools", may_lack=True)

    def split(self, environment: str, query: str) -> str:
        """Return the split of a name, or else the first one of that type."""
        splits = self._json("GET", f"/{environment}/splits")
        try:
            types = {split["name"]: split["type"] for split in splits}
        except (TypeError, KeyError):
            raise ServiceError(f"{self._access.url} lists its splits as {str(splits)[:100]!r}") from None
        match = query if query in types else next((name for name, kind in types.items() if kind == query), None)
        if match is None:
            choices = ", ".join(f"{name} ({kind})" for name, kind in types.items())
            raise UserError(f"the environment {environment} has no split {query!r}; it has {choices or 'none'}")
        return match

    def draw(self, environment: str, split: str, *, count: int, seed: int) -> list[tuple[int, dict[str, Any]]]:
        """Return `count` tasks of a split with their indices, in an order that the seed decides."""
        number, all_tasks = self._number(environment, split)
        if count > number:
            text = f"{count} tasks were asked for, and the split {split} of {environment} has {number}"
            raise TooFewTasks(text, number)
        indices = random.Random(f"{split}/{seed}").sample(range(number), count)
        if all_tasks is None and (number <= _FEW or count > _FEW):
            body = {"split": split, "start": 0, "stop": number}
            answer = self._json("POST", f"/{environment}/task_range", body, may_lack=True)
            all_tasks = answer.get("tasks") if isinstance(answer, dict) else None
        if all_tasks is not None:
            if len(all_tasks) != number:
                raise ServiceError(f"{self._access.url} has {number} tasks in {split}, and lists {len(all_tasks)}")
            return [(index, dict(all_tasks[index])) for index in indices]
        path = f"/{environment}/task"
        return [(i, dict(self._json("POST", path, {"split": split, "index": i})["task"])) for i in indices]

    def _number(self, environment: str, split: str) -> tuple[int, Sequence[Any] | None]:
        """Return the number of tasks; and the tasks themselves from a server that has no other way."""
        answer = self._json("POST", f"/{environment}/num_tasks", {"split": split}, may_lack=True)
        if isinstance(answer, dict) and isinstance(answer.get("num_tasks"), int):
            return answer["num_tasks"], None
        answer = self._json("POST", f"/{environment}/tasks", {"split": split})
        all_tasks = answer.get("tasks") if isinstance(answer, dict) else None
        if not isinstance(all_tasks, list):
            raise ServiceError(f"{self._access.url} lists the tasks of {split} as {str(answer)[:100]!r}")
        return len(all_tasks), all_tasks

    def _json(self, method: str, path: str, body: Any = None, *, may_lack: bool = False) -> Any:
        what = f"{method} {path}"
        try:
            response = self._client.request(method, path, json=body)
        except httpx.ConnectError as error:
            problem = f"no server answers at {self._access.url} ({error})"
            raise UserError(f"{problem}: start it, or correct the address") from None
        except httpx.HTTPError as error:
            raise ServiceError(f"{what} of {self._access.url} failed: {type(error).__name__}: {error}") from None
        if response.status_code in (404, 405) and may_lack:
            return None
        if response.is_success:
            try:
                return read(decoded(response.content))
            except ValueError:
                raise UserError(f"{self._access.url} is no ORS server: {what} is answered without JSON") from None
        refusal = self._access.refusal(what, response)
        if path == "/list_environments" and not isinstance(refusal, (UserError, EnvError)):
            raise UserError(f"{refusal}. Is it an ORS server, and of this version of the standard?")
        raise refusal

"""Services that environments run in: `env` runs episodes, `reward` scores responses, `task_source` hands out tasks."""

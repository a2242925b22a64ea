"""Figures over many episodes: of tools, their durations, calls, errors and faults; and of training rows."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from forge_env.core.episode import Episode
from forge_env.core.reward_value import are_same
from forge_env.core.types import Outcome
from forge_env.core.usage import INFO_KEY, ROLES

_TOOL_FAULT = re.compile(r"(?:[A-Za-z]+: )?(?:the )?tool ([A-Za-z0-9_-]{1,64})(?: \(|: | raised )")
"""Matches the error of an episode that a tool call ended, such as "ServiceError: tool search: ..."."""

MAX_PARTS = 32
"""Parts of the reward with figures of their own: an environment may name a part by its task, and each is a metric."""


@dataclass(slots=True, kw_only=True)
class ToolFigures:
    """Figures of one tool. Example: ``ToolFigures(seconds=[0.1, 0.2], errors={"timeout": 1})``"""

    seconds: list[float] = field(default_factory=list)
    """Duration of each call that reached the tool."""
    errors: dict[str, int] = field(default_factory=dict)
    """Kind of `ToolUse.error` -> number of calls: "unknown_tool", "bad_arguments", "timeout", "raised", ..."""
    faults: int = 0
    """Number of episodes that a call of the tool ended by a fault; they have no reward."""

    @property
    def calls(self) -> int:
        """Number of all calls, including those that did not reach the tool."""
        return len(self.seconds) + sum(self.errors.get(kind, 0) for kind in ("unknown_tool", "bad_arguments"))

    @property
    def has_only_failed(self) -> bool:
        """Whether calls reached the tool, and each of them failed or was a fault."""
        failures = sum(n for kind, n in self.errors.items() if kind not in ("unknown_tool", "bad_arguments"))
        return failures + self.faults > 0 and failures == len(self.seconds)

    def quantile(self, share: float) -> float:
        """Return a quantile of the durations in seconds; 0 without calls."""
        if len(self.seconds) < 2:
            return self.seconds[0] if self.seconds else 0.0
        return statistics.quantiles(self.seconds, n=100, method="inclusive")[round(share * 100) - 1]


def tool_figures(episodes: Iterable[Episode]) -> dict[str, ToolFigures]:
    """Return the figures of all tool calls by the name of the tool; all unknown names count as "unknown"."""
    figures: dict[str, ToolFigures] = defaultdict(ToolFigures)
    for episode in episodes:
        for use in (use for turn in episode.turns for use in turn.tool_uses):
            # a model may write any name, and each would become a metric
            tool = figures["unknown" if use.error == "unknown_tool" else use.name]
            if use.error:
                tool.errors[use.error] = tool.errors.get(use.error, 0) + 1
            if use.error not in ("unknown_tool", "bad_arguments"):
                tool.seconds.append(use.seconds)
        if name := faulted_tool(episode):
            figures[name].faults += 1
    return dict(figures)


def faulted_tool(episode: Episode) -> str:
    """The tool that ended an episode with a fault of its call; "" if none did."""
    is_fault = episode.outcome in (Outcome.ENV_FAULT, Outcome.INFRA_FAULT)
    match = _TOOL_FAULT.match(episode.error) if is_fault else None
    return match[1] if match else ""


def tool_metrics(episodes: Iterable[Episode]) -> dict[str, float]:
    """Return the figures as flat metrics: tool/NAME/calls, p50_s, p95_s, errors, and faults if there are any."""
    metrics: dict[str, float] = {}
    for name, tool in sorted(tool_figures(episodes).items()):
        metrics |= {
            f"tool/{name}/calls": tool.calls,
            f"tool/{name}/errors": sum(tool.errors.values()),
            f"tool/{name}/p50_s": tool.quantile(0.50),
            f"tool/{name}/p95_s": tool.quantile(0.95),
            **({f"tool/{name}/faults": tool.faults} if tool.faults else {}),
        }
    return metrics


def unstopped_warnings(episodes: Iterable[Episode]) -> list[str]:
    """Return a warning for each method that ran on after the end of its episode, out of info["unstopped"]."""
    counts: Counter[str] = Counter()
    for episode in episodes:
        names = episode.info.get("unstopped")
        counts.update(map(str, names) if isinstance(names, list) else ())  # an environment may write anything there
    return [
        f"{name} of the environment ran on after its time limit in {count} episode{'s' * (count > 1)}: it blocks in a "
        "C call, which Python cannot interrupt, and keeps its instance until it returns; let it end itself, or run it "
        "in a process"
        for name, count in sorted(counts.items())
    ]


def reward_parts(episodes: Iterable[Episode], *, by_task: bool = False) -> dict[str, dict[str, float]]:
    """Return the figures of each part of the reward, see `Episode.rewards`: {NAME: {"mean", "std", "episodes"}}.

    The mean and the standard deviation are over the episodes with a reward that have the part, and "episodes" is their
    number: an episode that a limit has ended may have none. Of more than `MAX_PARTS`, the most frequent are returned.

    Args:
        by_task: gives all tasks equal weight in the mean, as an `Evaluation` does.
    """
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for episode in episodes:
        if episode.outcome.is_valid:
            for name, value in episode.rewards.items():
                values[name][episode.task.id if by_task else ""].append(value)
    counts = Counter({name: sum(map(len, of_part.values())) for name, of_part in sorted(values.items())})
    return {
        name: {
            "mean": statistics.fmean(map(statistics.fmean, values[name].values())),
            "std": statistics.pstdev(chain.from_iterable(values[name].values())),
            "episodes": count,
        }
        for name, count in sorted(counts.most_common(MAX_PARTS))
    }


def reward_part_metrics(parts: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {f"reward/{name}/{figure}": float(value) for name, part in parts.items() for figure, value in part.items()}


def telling_parts(reward: float | None, parts: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the names of the parts that are worth showing beside the mean reward: a single part may be the reward."""
    means = [part["mean"] for part in parts.values()]
    is_reward = len(means) == 1 and reward is not None and are_same([reward, *means])
    return [] if is_reward else list(parts)


def mean_of_part(part: Mapping[str, float], episodes: int) -> str:
    """Return a part's mean for people, with the number of episodes that have it if others do not."""
    count = int(part["episodes"])
    return f"{part['mean']:.3f}" + (f" ({count:,} of {episodes:,} episodes)" if count < episodes else "")


def model_calls(episodes: Iterable[Episode]) -> dict[str, dict[str, float]]:
    """Return what the models beside the policy have used, by role ("user", "judge") and name ("calls", "cost", ...)."""
    sums: dict[str, dict[str, float]] = {}
    for episode in episodes:
        usage = episode.info.get(INFO_KEY)
        for role in ROLES:
            of_role = usage.get(role) if isinstance(usage, Mapping) else None
            if isinstance(of_role, Mapping):  # an environment may write anything there
                total = sums.setdefault(role, {})
                for name, count in of_role.items():
                    if isinstance(count, (int, float)):
                        total[name] = total.get(name, 0) + count
    return sums


def model_call_metrics(episodes: Iterable[Episode]) -> dict[str, float]:
    """Return the same as flat metrics: user/calls, user/prompt_tokens, judge/cost, ..."""
    calls = model_calls(episodes)
    return {f"{role}/{name}": float(count) for role, counts in calls.items() for name, count in counts.items()}


def row_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return figures of rows, as flat metrics; docs/metrics.md says what each of them is.

    Auxiliary turns count for rollout/auxiliary_turns only.
    """
    turns = [turn for episode in episodes for turn in episode.work if turn.kind != "text"]
    auxiliary = sum(bool(turn.auxiliary) for episode in episodes for turn in episode.turns)
    tokens = sum(len(turn.prompt_ids) + len(turn.token_ids) for turn in turns)
    repeats = sum(episode.info.get("repeated_tokens", 0) for episode in episodes)
    num_forced = sum(turn.constrained for turn in turns)
    return {
        "rollout/rows_per_episode": sum(turn.starts_row for turn in turns) / max(len(episodes), 1),
        "rollout/repeated_tokens": repeats / max(tokens, 1),
        **({"rollout/constrained_tokens": num_forced / sum(turn.num_written for turn in turns)} if num_forced else {}),
        **({"rollout/auxiliary_turns": auxiliary / len(episodes)} if auxiliary else {}),
        **{f"rollout/row_began/{kind}": rows.count / len(episodes) for kind, rows in rows_began(episodes).items()},
    }


@dataclass(slots=True, kw_only=True)
class RowsBegan:
    count: int = 0
    example: str = ""
    """A sentence about the first one: the episode, the turn, and what differs from an earlier row."""


def rows_began(episodes: Iterable[Episode]) -> dict[str, RowsBegan]:
    """Return the rows after the first one of each episode by the kind of their reason, without auxiliary ones."""
    by_kind: dict[str, RowsBegan] = defaultdict(RowsBegan)
    for episode in episodes:
        for row in episode.lineage:
            if not row.kind or episode.turns[row.turn].auxiliary:
                continue
            began = by_kind[row.kind]
            began.count += 1
            began.example = began.example or f"{episode.id}, turn {row.turn}: {row.why}"
    return dict(sorted(by_kind.items()))

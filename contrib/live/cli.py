"""`forge-env live`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from forge_env.cli.output import Json, emit, say, show_table


def live(
    run: Annotated[Path, typer.Argument(help="Folder of a training run that goes on.")],
    action: Annotated[str, typer.Argument(help="pause, resume, stop, evaluate, set or requeue; none only looks.")] = "",
    value: Annotated[str, typer.Argument(help="For set: LIMIT=VALUE. For requeue: a group or an episode.")] = "",
    as_json: Json = False,
) -> int:
    """Show what a training run does now, or act on it: pause, resume, stop, evaluate, set, requeue."""
    from contrib.live.client import LiveClient

    with LiveClient(run.expanduser(), "forge-env live") as client:
        if action:
            text = client.act(action, value)
            emit({"text": text}) if as_json else say(text)
        else:
            state = client.look()
            emit(state) if as_json else _show(state)
    return 0


def _show(state: dict[str, Any]) -> None:
    queue = state["queue"]
    if queue is None:
        say("the run takes no steps now")
    else:
        marks = [name for name in ("paused", "evaluates", "stopping") if state[name]]
        say(f"{queue['steps_done']} of {state['steps']} steps{''.join(f', {mark}' for mark in marks)}")
        wait = f"; the next step waits for {', '.join(map(str, queue['waited_for']))}" if queue["waited_for"] else ""
        say(
            f"queue: {queue['ready']} of {queue['open']} groups are ready, {queue['groups_per_step']} make a step; "
            f"the engines have the weights of step {queue['engine_steps']}{wait}"
        )
    for name in state["silent"]:
        say(f"{name} does not answer")
    parts = {"under way": state["waits"], "services": state["services"], "episodes": state["episodes"]}
    show_table(("under way", "s"), [(each["for"], f"{each['seconds']:.1f}") for each in parts["under way"]])
    show_table(
        ("service", "up", "calls", "replaced"),
        [
            (each["name"], f"{each['up']} of {each['wanted']}", str(each["calls"]), str(each["replaced"]))
            for each in parts["services"]
        ],
    )
    show_table(
        ("episode", "turns", "waits for", "s", "last message"),
        [
            (
                each["episode"],
                str(each["turns"]),
                each["waits_for"],
                f"{each['seconds']:.1f}",
                ": ".join(each["last"].values())[:120],
            )
            for each in parts["episodes"]
        ],
    )

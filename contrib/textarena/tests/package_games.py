"""Plays games of one with TextArena's own loop, in whose interpreter it runs: JSON games on standard input."""

import json
import random
import sys

import numpy
import textarena


def play(game: dict) -> dict:
    """Play the moves; a game that is not over when they end is worth what it counts, else 0."""
    random.seed(game["seed"])
    numpy.random.seed(game["seed"] % 2**32)
    env = textarena.make(game["id"])
    env.reset(num_players=1, seed=game["seed"])
    for number, move in enumerate(game["moves"]):
        env.get_observation()
        done, _ = env.step(action=move)
        if done:
            rewards, info = env.close()
            return {"reward": rewards[0], "moves": number + 1, "reason": info[0].get("reason")}
    share = getattr(env, "_get_percentage_completion", lambda: 0.0)()
    return {"reward": share, "moves": len(game["moves"]), "reason": None}


print(json.dumps([play(game) for game in json.load(sys.stdin)]))

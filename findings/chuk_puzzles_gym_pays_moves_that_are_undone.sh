#!/bin/sh
# chuk-puzzles-gym's rewards of an episode that solves a puzzle, and of one that places a digit and clears it again.
# Packages: chuk-puzzles-gym 0.10.3, chuk-gym-core 0.1.1, pydantic 2.14.4. Guess: "correct_placement" pays 1 for each cell that is
# filled rightly, and a solved puzzle, with its bonus of 10, is the best that an episode can be paid.
# Seen: each move that is allowed is paid 1, also one that takes a digit away. The right digits in the 35 empty cells are paid 45.
# One digit, placed and cleared until the step limit, is paid 1000, and the grid is as it was. So is Sokoban: a step to and fro.
# The bonus does not weigh it: at the end no step remains, so its efficiency is 1 after any detour, and one that costs 100 moves
# adds 100. A smaller `max_steps` only lowers the sum.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check chuk-gym-core==0.1.1 pydantic==2.14.4
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps chuk-puzzles-gym==0.10.3
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
import asyncio
from importlib.metadata import version

from chuk_puzzles_gym.gym_env import PuzzleEnv

assert version("chuk-puzzles-gym") == "0.10.3"


def empty_cells(observation):
    return [(row, column) for row in range(9) for column in range(9) if observation["grid"][row][column] == 0]


def solve(observation, solution):
    return [f"place {row + 1} {column + 1} {solution[row][column]}" for row, column in empty_cells(observation)]


def undo(observation, solution):
    row, column = empty_cells(observation)[0]
    return [f"place {row + 1} {column + 1} {solution[row][column]}", f"clear {row + 1} {column + 1}"] * 500


def undo_then_solve(observation, solution):
    return undo(observation, solution)[:100] + solve(observation, solution)


async def play(actions):
    environment = PuzzleEnv("sudoku", difficulty="easy", seed=1)
    first, _ = await environment.reset()
    first = {"grid": [list(row) for row in first["grid"]]}
    paid = steps = 0
    for action in actions(first, environment._game.solution):
        last, reward, solved, stopped, _ = await environment.step(action)
        paid, steps = paid + float(reward), steps + 1
        if solved or stopped:
            break
    return paid, steps, solved, [list(row) for row in last["grid"]] == first["grid"]


for actions, expected in (
    (solve, (45.0, 35, True, False)),
    (undo, (1000.0, 1000, False, True)),
    (undo_then_solve, (145.0, 135, True, False)),
):
    paid, steps, solved, same = asyncio.run(play(actions))
    print(f"{actions.__name__}: paid {paid} in {steps} steps, solved {solved}, the grid is the first one {same}")
    assert (paid, steps, solved, same) == expected
EOP

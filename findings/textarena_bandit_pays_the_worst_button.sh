#!/bin/sh
# Rewards of TextArena's games for one player: the last choice of Bandit, and the end after too many invalid moves.
# Package: textarena 0.7.4. Guess: the best button is paid 1, as the code says ("Congratulations!"), and a worse one less; a game
# that ends by invalid moves has a number as its reward, and the model reads why its move was invalid.
# Seen: 1. Bandit-v0 compares the button with the table of all means, so no choice is right. The reward is then the regret: the
# best button is paid 0.0, and the worst one most of all. A policy learns to find the worst. 2. Countdown, Cryptarithm,
# Slitherlink and ThreeCardMonte give the reward and the reason in each other's place: the second invalid move in a row is paid
# with a sentence, and after the first one the model reads a number as the reason. 3. Cryptarithm pays a whole mapping that is
# wrong 0.0, and one that is never finished 0.875, though no letter in it is right. 4. Blackjack counts a draw as half a win only
# if invalid moves end the game: two of them in the last hand can be worth more than to play it.
# PYTHON may name an interpreter that has the package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check textarena==0.7.4
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
from importlib.metadata import version

import textarena

assert version("textarena") == "0.7.4", version("textarena")


def play(game, moves, seed=1):
    """Play these moves; return the reward, what the player read, and the game."""
    env = textarena.make(game)
    env.reset(num_players=1, seed=seed)
    read = ""
    for move in moves:
        done, _ = env.step(action=move)
        read = read if done else str(env.get_observation()[1])
    assert done, f"{game} goes on"
    rewards, info = env.close()
    return rewards[0], read, env


paid = {}
for button in ("red", "blue", "green", "yellow", "purple"):
    reward, _, env = play("Bandit-v0", ["[red]"] * 20 + [f"[{button}]"])
    mean = env.state.game_state["ground_truth"][button]
    paid[mean] = reward
    print(f"Bandit: {button}, mean {mean:.2f}, is paid {reward:.2f}")
assert paid[max(paid)] == 0.0
assert sorted(paid, reverse=True) == sorted(paid, key=paid.get)

for game in ("Countdown-v0", "Cryptarithm-v0", "Slitherlink-v0", "ThreeCardMonte-v0"):
    reward, read, _ = play(game, ["I do not know"] * 2)
    reason = read.split("Reason: ")[-1].split(" ")[0]
    print(f"{game}: paid {reward!r}; the model read the reason {reason}")
    assert isinstance(reward, str) and float(reason) >= 0

letters = "SENDMORY"  # right: 9 5 6 7 1 0 8 2
wrong = [f"[{letter} {digit}]" for digit, letter in enumerate(letters, 1)]
whole, _, _ = play("Cryptarithm-v0", wrong)
unfinished, _, _ = play("Cryptarithm-v0", wrong[:7] + ["[R 7]"] * 94)
print(f"Cryptarithm: a whole wrong mapping is paid {whole}, an unfinished one {unfinished}")
assert (whole, unfinished) == (0.0, 0.875)

stood = [play("Blackjack-v0", ["[Stand]"] * 5, seed)[0] for seed in range(100)]
broken = [play("Blackjack-v0", ["[Stand]"] * 4 + ["I do not know"] * 2, seed)[0] for seed in range(100)]
more = sum(left > right for left, right in zip(broken, stood))
print(f"Blackjack: in {more} of 100 games two invalid moves instead of the last hand are paid more")
assert more == 9
EOP

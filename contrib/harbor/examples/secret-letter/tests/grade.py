"""A text in cipher."""

import judge

judge.reward(
    judge.read("/app/plain.txt").strip() == "Dear Ann, the meeting is moved to Thursday at nine. Bring the maps!"
)

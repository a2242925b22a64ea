"""Guess a number, with hints: several turns, played by an Env of its own, with a limit of turns."""

import random

import verifiers.v1 as vf

__all__ = ["Guess", "GuessEnv"]


class GuessData(vf.TaskData):
    number: int


class GuessTask(vf.Task[GuessData]):
    @vf.reward(weight=0.75)
    async def found(self, task, trace) -> float:
        return float(trace.last_reply.strip() == str(task.number))

    @vf.reward(weight=0.25)
    async def quickly(self, task, trace) -> float:
        return float(trace.last_reply.strip() == str(task.number) and trace.num_turns <= 4)

    @vf.metric
    async def guesses(self, trace) -> float:
        return float(trace.num_turns)


class Guess(vf.Taskset[GuessTask]):
    def load(self):
        for i in range(60):
            number = random.Random(i).randrange(1, 9)
            prompt = f"Game {i}: guess my number, 1 to 8."
            data = GuessData(prompt=prompt, system_prompt="Answer with a number.", number=number)
            yield GuessTask(data, self.config.task)


class GuessEnvConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig(max_turns=6)


class GuessEnv(vf.Env[GuessEnvConfig]):
    async def run(self, task, agents):
        opening = task.data.prompt
        silent = task.with_data(prompt=None)
        async with agents.agent.interaction(silent) as player:
            turn = await player.turn(opening)
            while not turn.terminated and turn.last_reply.strip() != str(task.data.number):
                guess = turn.last_reply.strip()
                hint = "higher" if guess.isdecimal() and int(guess[:4]) < task.data.number else "lower"
                turn = await player.turn(f"No, {hint}.")

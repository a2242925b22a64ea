"""Look up prices with a tool: a tool server that the rollouts share."""

import verifiers.v1 as vf

__all__ = ["Shelf"]

PRICES = {name: 3 + 7 * i for i, name in enumerate(["apple", "pear", "plum", "fig", "kiwi", "lime", "date", "nut"])}


class Tools(vf.Toolset[vf.SharedToolsetConfig]):
    @vf.tool
    async def price(self, name: str) -> str:
        """Return the price of a fruit."""
        return str(PRICES.get(name, "there is no such fruit"))


class ShelfData(vf.TaskData):
    answer: str


class ShelfTask(vf.Task[ShelfData]):
    @vf.reward
    async def right(self, task, trace) -> float:
        return float(trace.last_reply.strip() == task.answer)

    @vf.metric
    async def calls(self, trace) -> float:
        return float(len(trace.tool_messages))


class ShelfConfig(vf.TasksetConfig):
    split: str = "train"
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()


class Shelf(vf.Taskset[ShelfTask, ShelfConfig]):
    def load(self):
        names = list(PRICES)
        for i, one in enumerate(names):
            for other in names[i + 1 :]:
                prompt = f"What do a {one} and a {other} cost together ({self.config.split})? Answer with the number."
                data = ShelfData(prompt=prompt, answer=str(PRICES[one] + PRICES[other]))
                yield ShelfTask(data, self.config.task)

    @classmethod
    def toolsets(cls, config):
        return [Tools(config.tools)]


if __name__ == "__main__":
    Tools.run()

import verifiers.v1 as vf

__all__ = ["Sums"]


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward
    async def right(self, task, trace) -> float:
        return float(trace.last_reply.strip() == task.answer)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))


class Sums(vf.Taskset[SumTask]):
    def load(self):
        for i in range(40):
            yield SumTask(
                SumData(prompt=f"What is {i} + 7? Answer with the number.", answer=str(i + 7)), self.config.task
            )

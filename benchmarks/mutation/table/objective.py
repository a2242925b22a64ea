"""Rewards, advantages, credit, old logprobs, and the chunked head."""

from __future__ import annotations

from benchmarks.mutation.source import Mutant

ADVANTAGES = ("test_advantages.py",)
CREDIT = ("test_credit.py",)
OBJECTIVE = ("test_objective.py",)
KL_REWARD = ("test_reward.py",)
OVERLONG = ("test_overlong.py", "test_objective.py")
HEAD = ("test_head.py",)
OLD = ("test_old_logprobs.py",)

MUTANTS = (
    Mutant(
        name="each step of a window gets the old logprobs of the step before it",
        function="OldLogprobs.begin_window",
        old="for groups in batches[1:]",
        new="for groups in batches",
        tests=OLD,
    ),
    Mutant(
        name="old logprobs of samples that are not learned from shift those of others",
        function="OldLogprobs._freeze",
        old="[next(values) if of_sample else None for of_sample in is_computed]",
        new="[next(values, None) for of_sample in is_computed]",
        tests=OLD,
    ),
    Mutant(
        name="GSPO clips against the engine in bfloat16, and not in float32",
        function="whose_old_logprobs",
        old='config.precision == "float32"',
        new='config.precision != "float32"',
        tests=(*OLD, "test_read_config.py", "test_plan.py"),
    ),
    Mutant(
        name="groups are taken together where nothing asks for it",
        function="RunPlan.window",
        old='== "trainer" else 1',
        new='== "generator" else 1',
        tests=OLD,
    ),
    Mutant(
        name="the KL penalty in the reward has the wrong sign",
        function="KLPenalty.by_turn",
        old="generator_logprobs - np.asarray(reference_logprobs, dtype=np.float64)",
        new="np.asarray(reference_logprobs, dtype=np.float64) - generator_logprobs",
        tests=KL_REWARD,
    ),
    Mutant(
        name="k3 in the reward has the sign of its log-ratio wrong",
        function="KLPenalty.by_turn",
        old="np.expm1(-d) + d",
        new="np.expm1(d) - d",
        tests=KL_REWARD,
    ),
    Mutant(
        name="the KL penalty is added to the advantages",
        function="_differences",
        old="a - b",
        new="a + b",
        tests=KL_REWARD + OBJECTIVE,
    ),
    Mutant(
        name="advantages are not divided by the scale of the step",
        function="Objective.samples",
        old="self.scale(rewards) if self.scale else 1.0",
        new="1.0",
        tests=OBJECTIVE,
    ),
    Mutant(
        name="episodes that overlong filtering leaves out are learned from",
        function="Objective.samples",
        old="if self.learns_from(episode)",
        new="",
        tests=OBJECTIVE,
    ),
    Mutant(
        name="dynamic sampling takes a difference in length for a signal",
        function="Objective.task_rewards",
        old="self.reward.of_task(episode)",
        new="self.reward(episode)",
        tests=(*OBJECTIVE, "test_own_parts.py", "test_loop.py"),
    ),
    Mutant(
        name="an advantage needs one episode only",
        function="make_objective",
        old='least = 1 if baseline == "none" else 2',
        new="least = 1",
        tests=(*OBJECTIVE, "test_config.py", "test_advantages.py"),
    ),
    Mutant(
        name="a turn's return leaves out its own reward",
        function="returns_to_go",
        old="step_rewards[:turn]",
        new="step_rewards[: turn + 1]",
        tests=CREDIT,
    ),
    Mutant(
        name="a turn that one sibling alone took has an advantage",
        function="turn_advantages",
        old="len(took) < 2",
        new="len(took) < 1",
        tests=CREDIT,
    ),
    Mutant(
        name="inserted tokens count as targets of a turn",
        function="turn_targets",
        old="turn.num_trained",
        new="len(turn.token_ids)",
        tests=(*CREDIT, "test_thought_budget.py"),
    ),
    Mutant(
        name="a row's first token counts as a target",
        function="turn_targets",
        old=" - (turn.starts_row and not turn.num_prompt and bool(turn.num_tokens))",
        new="",
        tests=CREDIT,
    ),
    Mutant(
        name="logprobs are those of the tokens before",
        function="target_logprobs",
        old="row.generator_logprobs[1:][row.loss_mask[1:]]",
        new="row.generator_logprobs[:-1][row.loss_mask[1:]]",
        tests=CREDIT + KL_REWARD,
    ),
    Mutant(
        name="the sample's and the population's deviation are swapped",
        function="_std",
        old="statistics.stdev(rewards) if ddof else statistics.pstdev(rewards)",
        new="statistics.pstdev(rewards) if ddof else statistics.stdev(rewards)",
        tests=ADVANTAGES,
    ),
    Mutant(
        name="the baseline is the median",
        function="centred",
        old="statistics.fmean(rewards)",
        new="statistics.median(rewards)",
        tests=ADVANTAGES,
    ),
    Mutant(
        name="leave-one-out is scaled the wrong way",
        function="leave_one_out",
        old="n / (n - 1) * difference",
        new="(n - 1) / n * difference",
        tests=ADVANTAGES,
    ),
    Mutant(
        name="a step whose rewards are all the same is divided by the epsilon",
        function="batch_std",
        old="std + std_eps if std > 0 else 1.0",
        new="std + std_eps",
        tests=ADVANTAGES,
    ),
    Mutant(
        name="the epsilon is subtracted from the deviation",
        function="group_relative",
        old="_divided(centred(rewards), _std(rewards, ddof), std_eps)",
        new="_divided(centred(rewards), _std(rewards, ddof), -std_eps)",
        tests=ADVANTAGES,
    ),
    Mutant(
        name="a group with one reward for all has a signal",
        function="has_signal",
        old="len(set(rewards)) > 1",
        new="len(set(rewards)) >= 1",
        tests=ADVANTAGES,
    ),
    Mutant(
        name="the punishment of length has no end",
        function="OverlongPunishment.__call__",
        old="(beyond / width if tokens < length else 1.0)",
        new="(beyond / width)",
        tests=OVERLONG,
    ),
    Mutant(
        name="the longest episode is not shortened by its prompt",
        function="OverlongPunishment.length_of",
        old="self.context - len(episode.turns[0].prompt_ids)",
        new="self.context",
        tests=OVERLONG,
    ),
    Mutant(
        name="the punishment of length is a reward",
        function="TrainingReward.__call__",
        old="reward + self.addition(episode)",
        new="reward - self.addition(episode)",
        tests=OVERLONG,
    ),
    Mutant(
        name="a target's logit is not divided by the temperature",
        function="_HeadLogprobs.forward",
        old="logits.gather(-1, column)[:, 0].to(dtype) / temperature",
        new="logits.gather(-1, column)[:, 0].to(dtype)",
        tests=HEAD,
    ),
    Mutant(
        name="the head's gradient is not divided by the temperature",
        function="_HeadLogprobs.backward",
        old="of_logprobs / ctx.temperature",
        new="of_logprobs",
        tests=HEAD,
    ),
    Mutant(
        name="a target outside of a chunk adds to the chunk's gradient",
        function="_of_scaled",
        old="torch.where(inside, w, 0.0)[:, None]",
        new="w[:, None]",
        tests=HEAD,
    ),
    Mutant(
        name="the first column of the next chunk counts as this one's",
        function="_within",
        old="targets < chunk.stop",
        new="targets <= chunk.stop",
        tests=HEAD,
    ),
    Mutant(
        name="the entropy of the chunks' shares is left out",
        function="_combined",
        old="(share * entropy).sum(0) + torch.special.entr(share).sum(0)",
        new="(share * entropy).sum(0)",
        tests=HEAD,
    ),
    Mutant(
        name="a shard of the vocabulary counts its targets from 0",
        function="head_logprobs",
        old="targets - start",
        new="targets",
        tests=HEAD,
    ),
)

"""Masks, samples, micro-batches, packing, and the limits of the context."""

from __future__ import annotations

from benchmarks.mutation.source import Mutant

BATCH = ("test_batch.py", "test_invariance.py")
PACKING = ("test_packing.py", "test_batch.py")
TRAINER = ("test_trainer.py",)
CONTEXT = ("test_context.py",)
AGENT = ("test_token_agent.py", "test_rollout.py")
THOUGHT = ("test_thought_budget.py", "test_thinking.py")

MUTANTS = (
    Mutant(
        name="a row's first token counts as a target in the denominators",
        function="Sample.units",
        old="zip(row.loss_mask[1:], row.generator_logprobs[1:], strict=False)",
        new="zip(row.loss_mask, row.generator_logprobs, strict=False)",
        tests=BATCH + TRAINER,
    ),
    Mutant(
        name="a token without a finite logprob counts in the denominators",
        function="Sample.units",
        old="sampled and math.isfinite(logprob)",
        new="sampled",
        tests=BATCH + TRAINER,
    ),
    Mutant(
        name="a sample is idle as soon as one token has no advantage",
        function="Sample.has_advantage",
        old="any(self.advantage)",
        new="all(self.advantage)",
        tests=BATCH + TRAINER,
    ),
    Mutant(
        name="generator logprobs are those of the tokens before",
        function="_build",
        old="row.generator_logprobs[1 : n + 1]",
        new="row.generator_logprobs[:n]",
        tests=BATCH,
    ),
    Mutant(
        name="values that are not one for each sampled target are let through",
        function="_lengths",
        old="len(values) != sampled",
        new="len(values) < sampled",
        tests=BATCH,
    ),
    Mutant(
        name="the positions of a packed row go on from the row before",
        function="_build",
        old="positions[inputs] = np.arange(n)",
        new="positions[inputs] = np.arange(start, start + n)",
        tests=BATCH,
    ),
    Mutant(
        name="a sequence's rows are laid over each other",
        function="_build",
        old="start += n",
        new="start += 0",
        tests=BATCH,
    ),
    Mutant(
        name="the loss mask holds tokens without a finite logprob",
        function="_build",
        old="loss_mask = sampled & np.isfinite(generator_logprobs)",
        new="loss_mask = sampled",
        tests=BATCH,
    ),
    Mutant(
        name="episodes without a valid token count in the denominators",
        function="_build",
        old="int(np.count_nonzero(loss_mask.any(-1)))",
        new="len(order)",
        tests=BATCH,
    ),
    Mutant(
        name="an episode's rows are laid over each other in the loss",
        function="_build",
        old="first = sum(lengths[sample][:row_number])",
        new="first = 0",
        tests=BATCH,
    ),
    Mutant(
        name="a padded micro-batch may be larger than its limit",
        function="_Padded.has_room",
        old="(len(self.layout) + len(item.places)) * self.width <= max_tokens",
        new="len(self.layout) * self.width <= max_tokens",
        tests=PACKING,
    ),
    Mutant(
        name="a packed sequence never fills",
        function="_Packed.add",
        old="free[best] -= length",
        new="free[best] -= 1",
        tests=PACKING,
    ),
    Mutant(
        name="attention costs the same for each token",
        function="row_cost",
        old="length * length / crossover",
        new="length / crossover",
        tests=PACKING,
    ),
    Mutant(
        name="the rank that is first in every round is the same",
        function="_deal",
        old="ranks - 1 - turn if round_number % 2 else turn",
        new="turn",
        tests=PACKING,
    ),
    Mutant(
        name="what is left out does not count in the denominators",
        function="TitanTrainer.train_step",
        old="computed + left_out[0], episodes + left_out[1]",
        new="computed, episodes",
        tests=TRAINER,
    ),
    Mutant(
        name="a loss that is not finite changes the weights",
        function="TitanTrainer.train_step",
        old="tokens > 0 and math.isfinite(total) and math.isfinite(grad_norm)",
        new="tokens > 0",
        tests=TRAINER,
    ),
    Mutant(
        name="the prompt does not count in the context",
        function="TokenAgent.act",
        old="conversation.max_tokens - len(prompt)",
        new="conversation.max_tokens",
        tests=AGENT,
    ),
    Mutant(
        name="a full context gives an answer of no tokens",
        function="TokenAgent.act",
        old="if room < 1",
        new="if room < 0",
        tests=AGENT,
    ),
    Mutant(
        name="the digest is of the prompt that was asked, and not of the one that the engine saw",
        function="sample_within",
        old="return first, [first.prompt_ids]",
        new="return first, [tuple(prompt)]",
        tests=AGENT,
    ),
    Mutant(
        name="a thought over its budget goes on",
        function="sample_within",
        old="if is_in_thought(first.token_ids) else ()",
        new="if False else ()",
        tests=THOUGHT,
    ),
    Mutant(
        name="an answer at the budget is ended like a thought",
        function="sample_within",
        old="if is_in_thought(first.token_ids) else ()",
        new="",
        tests=THOUGHT,
    ),
    Mutant(
        name="what a turn's second request saw is not checked",
        function="sample_within",
        old="rest.prompt_ids != (*first.prompt_ids, *begun)",
        new="not rest.prompt_ids",
        tests=THOUGHT,
    ),
    Mutant(
        name="inserted tokens do not count towards the turn",
        function="sample_within",
        old="max_tokens=sampling.max_tokens - len(begun)",
        new="max_tokens=sampling.max_tokens - len(first.token_ids)",
        tests=THOUGHT,
    ),
    Mutant(
        name="a call in a thought that a limit has cut off is made",
        function="Renderer.read",
        old='finish_reason == "length"',
        new='finish_reason == "cut"',
        tests=THOUGHT,
    ),
    Mutant(
        name="both requests of a turn have one seed",
        function="_turn_seed",
        old=" + number * 104_729",
        new="",
        tests=THOUGHT,
    ),
    Mutant(
        name="all turns of an episode have one seed",
        function="_turn_seed",
        old=" + turn * 7_919",
        new="",
        tests=AGENT,
    ),
    Mutant(
        name="an answer is cut a token after its stop string",
        function="truncate_at_stop",
        old="(low, middle) if stops(middle) else (middle + 1, high)",
        new="(low, middle) if stops(middle - 1) else (middle + 1, high)",
        tests=("test_stop_strings.py",),
    ),
    Mutant(
        name="ranks that share sequences have neighbouring chunks, of which the late ones cost more",
        function="head_tail",
        old=".flip(0)",
        new="",
        tests=CONTEXT,
    ),
    Mutant(
        name="a query sees the keys of another rank that come after it",
        function="Context.mask",
        old="(queries[:, None] >= keys)",
        new="(queries[:, None] >= keys.flip(0))",
        tests=CONTEXT,
    ),
    Mutant(
        name="the gradient of a token goes back on every rank that shares its sequence",
        function="_Whole.backward",
        old="of_whole[chosen]",
        new="of_whole[chosen] * dist.get_world_size()",
        tests=CONTEXT,
    ),
)

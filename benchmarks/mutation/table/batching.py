"""Masks, samples, micro-batches, packing, and the limits of the context."""

from __future__ import annotations

from benchmarks.mutation.source import Mutant

BATCH = ("test_batch.py", "test_invariance.py")
PACKING = ("test_packing.py", "test_batch.py")
TRAINER = ("test_trainer.py",)
AGENT = ("test_token_agent.py", "test_rollout.py")

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
        function="_is_counted",
        old="return is_valid",
        new="return True",
        tests=BATCH,
    ),
    Mutant(
        name="a split episode counts in each of its micro-batches",
        function="_is_counted",
        old="rows[0] == read.rows[0] and ",
        new="",
        tests=BATCH,
    ),
    Mutant(
        name="the values of a split episode are those of its first rows",
        function="_Read.targets",
        old="np.arange(ends[row], ends[row + 1]) for row in rows",
        new="np.arange(ends[row], ends[row + 1]) - ends[rows[0]] for row in rows",
        tests=BATCH,
    ),
    Mutant(
        name="every rank adds the loss of a split episode",
        function="StepLoss.backward",
        old="if is_counted:",
        new="if True:",
        tests=("test_invariance.py",),
    ),
    Mutant(
        name="a split episode learns nothing from its entropy",
        function="SplitEpisodes.call_loss",
        old="self.uses_entropy |= entropies.grad is not None",
        new="self.uses_entropy = False",
        tests=("test_invariance.py",),
    ),
    Mutant(
        name="the gradients of a split episode are those of its first tokens",
        function="SplitEpisodes.backward",
        old="self._gradients[:, batch.numbers]",
        new="self._gradients[:, : len(batch.numbers)]",
        tests=("test_invariance.py",),
    ),
    Mutant(
        name="an episode that fits is split",
        function="_split",
        old="len(item.places) == 1 or fits(item)",
        new="len(item.places) == 1",
        tests=PACKING,
    ),
    Mutant(
        name="rows of split episodes share micro-batches with whole ones",
        function="_Padded.has_room",
        old="fits and item.is_part == self.is_part",
        new="fits",
        tests=PACKING,
    ),
    Mutant(
        name="an episode's rows are laid over each other in the loss",
        function="_build",
        old="first = sum(lengths[before] for before in rows_of[sample] if before < row_number)",
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
        function="TokenAgent.act",
        old="digest(completion.prompt_ids)",
        new="digest(prompt)",
        tests=AGENT,
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
)

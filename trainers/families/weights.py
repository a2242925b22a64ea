"""The tensors that a config.json asks for against the tensors of the folder's files, in Hugging Face's names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agents.model_weights import HEAD
from forge_env.core.errors import UserError

OLD = "rotary_emb.inv_freq"
"""Old folders have a weight with this end of its name, which no model reads."""
PREDICTS = ".eh_proj.weight"
"""A layer with this weight predicts further tokens (GLM-4.5): no model but a draft of the engine reads it."""
Shapes = Mapping[str, tuple[int, ...]]


def check_weights(where: Path, expected: Shapes, present: Shapes) -> None:
    """Check names and shapes of tensors.

    Args:
        expected: of the model. Without an output layer, that is the embedding, and the files may have a copy.
    """
    drafts = tuple(f"{name.removesuffix(PREDICTS)}." for name in present if name.endswith(PREDICTS))
    others = {name for name in present if name.endswith(OLD) or name.startswith(drafts)} | ({HEAD} - expected.keys())
    for name in sorted(expected.keys() | (present.keys() - others)):
        if name not in present or name not in expected:
            state = "lacks" if name not in present else "has a superfluous"
            raise UserError(f"{where} does not fit its config.json: it {state} weight {name}.")
        if expected[name] != present[name]:
            raise UserError(
                f"{where} does not fit its config.json: weight {name} has shape {present[name]} where {expected[name]} "
                "is expected."
            )

"""gymnasium:ID: Gymnasium environments over text. `env` holds the environment, `spaces` the text of a space."""

from contrib.gymnasium.text.env import GymnasiumText, from_gymnasium, plain_text, resolve
from contrib.gymnasium.text.spaces import ParseAction

__all__ = ["GymnasiumText", "ParseAction", "from_gymnasium", "plain_text", "resolve"]

"""gymnasium:ID: Gymnasium environments over text. `env` holds the environment, `spaces` the text of a space."""

from envs.gymnasium_text.env import GymnasiumText, from_gymnasium, plain_text, resolve
from envs.gymnasium_text.spaces import ParseAction

__all__ = ["GymnasiumText", "ParseAction", "from_gymnasium", "plain_text", "resolve"]

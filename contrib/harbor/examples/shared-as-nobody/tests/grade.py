"""A shared verifier that cannot be forged."""

import calls
import judge

CASES = (("a bbb cc", "bbb"), ("one two", "one"), ("", ""), ("  x  ", "x"), ("aa bbbb cccc", "bbbb"))
values = calls.call("/app/words.py", "longest", [[text] for text, _ in CASES])
judge.reward(values == [[expected] for _, expected in CASES])

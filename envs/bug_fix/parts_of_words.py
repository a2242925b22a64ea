"""Functions over texts and lists of words."""

from __future__ import annotations

from envs.bug_fix.part import Part

PARTS = (
    Part(
        name="split",
        takes="text",
        gives="words",
        about="Return the words of the text that have {n} letters or more, in lower case.",
        body="return [word.lower() for word in text.split() if len(word) >= {n}]",
        faults=(
            ("len(word) >= {n}", "len(word) > {n}"),
            ("word.lower()", "word"),
            ("len(word) >= {n}", "len(word) <= {n}"),
            ("len(word) >= {n}", "len(text) >= {n}"),
        ),
        numbers=range(2, 5),
    ),
    Part(
        name="pieces",
        takes="text",
        gives="words",
        about="Return the text in pieces of {n} characters; the last one may be shorter.",
        body="return [text[at : at + {n}] for at in range(0, len(text), {n})]",
        faults=(
            ("at + {n}]", "at + {n} - 1]"),
            ("range(0, len(text), {n})", "range(0, len(text) - {n} + 1, {n})"),
            ("range(0, ", "range(1, "),
            ("len(text), {n})", "len(text))"),
        ),
        numbers=range(2, 9),
    ),
    Part(
        name="capitals",
        takes="text",
        gives="words",
        about="Return the words of the text that begin with a capital letter, {n} of them at most.",
        body="""
result = []
for word in text.split():
    if word[0].isupper() and len(result) < {n}:
        result.append(word)
return result
""",
        faults=(
            ("word[0].isupper()", "word.isupper()"),
            ("len(result) < {n}", "len(result) <= {n}"),
            ("word[0].isupper()", "word[-1].isupper()"),
            ("word[0].isupper()", "word[0].islower()"),
        ),
        numbers=range(1, 4),
    ),
    Part(
        name="shorten",
        takes="words",
        gives="words",
        about="Return the words, each with more than {n} letters as its first {n} and a point.",
        body="return [word if len(word) <= {n} else word[:{n}] + '.' for word in words]",
        faults=(
            ("len(word) <= {n}", "len(word) < {n}"),
            ("word[:{n}] + '.'", "word[:{n}]"),
            ("word[:{n}]", "word[: {n} - 1]"),
            ("word[:{n}]", "word[-{n}:]"),
        ),
        numbers=range(2, 5),
    ),
    Part(
        name="shortest",
        takes="words",
        gives="words",
        about="Return the {n} shortest words, the shortest first; of the same length by the alphabet.",
        body="return sorted(words, key=lambda word: (len(word), word))[:{n}]",
        faults=(
            ("(len(word), word)", "word"),
            ("(len(word), word)", "(-len(word), word)"),
            ("(len(word), word)", "len(word)"),
            ("[:{n}]", "[-{n}:]"),
        ),
        numbers=range(2, 6),
    ),
    Part(
        name="distinct",
        takes="words",
        gives="words",
        about="Return the first {n} distinct words; case makes no difference, and the first spelling is kept.",
        body="""
result, known = [], set()
for word in words:
    if word.lower() not in known and len(result) < {n}:
        known.add(word.lower())
        result.append(word)
return result
""",
        faults=(
            ("word.lower() not in known", "word not in known"),
            ("known.add(word.lower())", "known.add(word)"),
            ("result.append(word)", "result.append(word.lower())"),
            ("len(result) < {n}", "len(known) <= {n}"),
        ),
        numbers=range(3, 7),
    ),
    Part(
        name="neighbours",
        takes="words",
        gives="words",
        about="Return each {n} words that follow each other, joined by hyphens.",
        body="return ['-'.join(words[at : at + {n}]) for at in range(len(words) - {n} + 1)]",
        faults=(
            ("- {n} + 1)", "- {n})"),
            ("'-'.join", "' '.join"),
            ("at + {n}]", "at + {n} - 1]"),
            ("range(len(words) - {n} + 1)", "range(1, len(words) - {n} + 1)"),
        ),
        numbers=range(2, 4),
    ),
    Part(
        name="count",
        takes="words",
        gives="pairs",
        about="Return the {n} most frequent words in lower case with their counts; of equal counts by the alphabet.",
        body="""
counts = dict()
for word in words:
    key = word.lower()
    counts[key] = counts.get(key, 0) + 1
ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
return [list(pair) for pair in ordered[:{n}]]
""",
        faults=(
            ("key = word.lower()", "key = word"),
            ("(-pair[1], pair[0])", "(pair[1], pair[0])"),
            ("counts.get(key, 0) + 1", "counts.get(word, 0) + 1"),
            ("(-pair[1], pair[0])", "-pair[1]"),
            ("ordered[:{n}]", "ordered[: {n} - 1]"),
        ),
        numbers=range(2, 6),
    ),
    Part(
        name="initials",
        takes="words",
        gives="pairs",
        about="Return how many words of {n} letters or more begin with each letter, by the alphabet, in lower case.",
        body="""
counts = dict()
for word in words:
    if len(word) >= {n}:
        letter = word[0].lower()
        counts[letter] = counts.get(letter, 0) + 1
return [[letter, counts[letter]] for letter in sorted(counts)]
""",
        faults=(
            ("len(word) >= {n}", "len(word) > {n}"),
            ("word[0].lower()", "word[0]"),
            ("word[0].lower()", "word[-1].lower()"),
            ("in sorted(counts)", "in counts"),
        ),
        numbers=range(2, 5),
    ),
    Part(
        name="wrap",
        takes="words",
        gives="text",
        about="Return the words in lines of {n} characters at most; a longer word has a line of its own.",
        body="""
lines = []
for word in words:
    if lines and len(lines[-1]) + 1 + len(word) <= {n}:
        lines[-1] += ' ' + word
    else:
        lines.append(word)
return '\\n'.join(lines)
""",
        faults=(
            ("+ 1 + len(word)", "+ len(word)"),
            ("<= {n}:", "< {n}:"),
            ("'\\n'.join", "' '.join"),
            ("len(lines[-1]) + 1 + len(word)", "len(lines[0]) + 1 + len(word)"),
        ),
        numbers=range(8, 15),
    ),
    Part(
        name="enumerate_words",
        takes="words",
        gives="text",
        about="Return the words joined by commas, each with its number, the first one with {n}.",
        body="return ', '.join(f'{at} {word}' for at, word in enumerate(words, {n}))",
        faults=(
            ("(words, {n})", "(words)"),
            ("(words, {n})", "(words, {n} - 1)"),
            ("f'{at} {word}'", "f'{word} {at}'"),
            ("enumerate(words, {n})", "enumerate(sorted(words), {n})"),
        ),
        numbers=range(1, 20),
    ),
    Part(
        name="acronym",
        takes="words",
        gives="text",
        about="Return the first letters of the words that have {n} letters or more, as capitals.",
        body="return ''.join(word[0].upper() for word in words if len(word) >= {n})",
        faults=(
            ("word[0].upper()", "word[0]"),
            ("len(word) >= {n}", "len(word) > {n}"),
            ("word[0].upper()", "word[:2].upper()"),
            ("len(word) >= {n}", "len(words) >= {n}"),
        ),
        numbers=range(2, 5),
    ),
)

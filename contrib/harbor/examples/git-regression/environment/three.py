import re


def slug(text):
    """Return a text in lower case, with a hyphen in the place of all but letters and digits; at most 20 characters."""
    return re.sub("[^a-z]+", "-", text.lower())[:20].rstrip("-")

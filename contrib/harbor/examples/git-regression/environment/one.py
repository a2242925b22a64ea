def slug(text):
    """Return a text in lower case, with hyphens in the place of all but letters and digits."""
    return "".join(c if c.isalnum() else "-" for c in text.lower())

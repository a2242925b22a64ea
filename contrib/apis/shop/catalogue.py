"""The invented people, places and goods that shops are made of."""

from __future__ import annotations

import tomllib
from pathlib import Path

_DATA = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))
CATALOGUE: dict[str, list[str]] = _DATA["goods"]
PRODUCTS = [(name, category) for category, names in CATALOGUE.items() for name in names]
PEOPLE = [(first, last) for first in _DATA["first_names"] for last in _DATA["last_names"]]


def email(person: int) -> str:
    first, last = PEOPLE[person]
    return f"{first}.{last}@example.com".lower()


def address(number: int) -> str:
    """The `number`-th postal address; different for each number."""
    streets, towns = _DATA["streets"], _DATA["towns"]
    number, street = divmod(number, len(streets))
    number, town = divmod(number, len(towns))
    return f"{number + 1} {streets[street]}, {towns[town]}"

"""The invented people, places and goods that shops are made of."""

from __future__ import annotations

FIRST_NAMES = [
    *("Ada", "Bruno", "Carla", "Dario", "Elin", "Femi", "Greta", "Hugo", "Ines", "Jonas", "Kaja", "Leon"),
    *("Mira", "Nils", "Olga", "Pavel", "Rosa", "Samir", "Tilda", "Umar", "Vera", "Wanda", "Yusuf", "Zora"),
]
LAST_NAMES = [
    *("Arnwick", "Belmore", "Corvane", "Dunlake", "Estwood", "Farrowby", "Gildern", "Hartvale", "Ilmering", "Jorvane"),
    *("Keldwin", "Lornley", "Mossgrave", "Nethercot", "Oakhame", "Pellworth", "Quenby", "Rostrand", "Selwyth"),
    *("Tolvane", "Umberly", "Vanterpole", "Wexholm", "Yarrowin"),
]
STREETS = [
    *("Mill Lane", "Station Road", "Harbour Street", "Orchard Way"),
    *("Castle Hill", "Bridge Street", "Meadow Row", "Garden Walk"),
]
TOWNS = ["Norwick", "Elmstead", "Port Averley", "Hollin", "Brackwater", "Sandmere", "Tarnholt", "Westerby"]

CATALOGUE = {
    "lamps": ["desk lamp", "floor lamp", "reading lamp", "lantern", "clip lamp"],
    "kitchen": ["teapot", "bread knife", "frying pan", "salad bowl", "coffee mill"],
    "garden": ["watering can", "rake", "plant pot", "hose", "pruning shears"],
    "office": ["stapler", "notebook", "fountain pen", "desk mat", "paper tray"],
    "bedroom": ["pillow", "wool blanket", "alarm clock", "bed sheet", "bedside rug"],
    "sports": ["yoga mat", "skipping rope", "tennis racket", "water bottle", "kettlebell"],
    "toys": ["wooden train", "jigsaw puzzle", "kite", "marble run", "spinning top"],
    "tools": ["claw hammer", "hand saw", "spirit level", "tape measure", "screwdriver set"],
}
PRODUCTS = [(name, category) for category, names in CATALOGUE.items() for name in names]
PEOPLE = [(first, last) for first in FIRST_NAMES for last in LAST_NAMES]


def email(person: int) -> str:
    first, last = PEOPLE[person]
    return f"{first}.{last}@example.com".lower()


def address(number: int) -> str:
    """The `number`-th postal address; different for each number."""
    number, street = divmod(number, len(STREETS))
    number, town = divmod(number, len(TOWNS))
    return f"{number + 1} {STREETS[street]}, {TOWNS[town]}"

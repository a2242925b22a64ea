def price(pieces, each):
    return round(pieces * each, 2)

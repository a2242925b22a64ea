def price(pieces, each):
    return pieces * each

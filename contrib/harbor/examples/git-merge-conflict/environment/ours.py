def price(pieces, each):
    discount = 0.9 if pieces >= 10 else 1
    return pieces * each * discount

#!/bin/sh
set -e
cat > /app/roman.py <<'END'
VALUES = (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1)
LETTERS = "M CM D CD C XC L XL X IX V IV I".split()


def roman(number):
    text = ""
    for value, letters in zip(VALUES, LETTERS):
        text += letters * (number // value)
        number %= value
    return text
END

#!/bin/sh
set -e
cat > /app/workdays.py <<'END'
from datetime import date, timedelta


def workdays(first, last, holidays):
    day, end, count = date.fromisoformat(first), date.fromisoformat(last), 0
    while day <= end:
        count += day.weekday() < 5 and day.isoformat() not in holidays
        day += timedelta(days=1)
    return count
END

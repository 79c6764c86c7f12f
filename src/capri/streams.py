"""Salts that keep random streams apart which come from the same seed.

One seed draws the function, the users, the policy and its noise. Each takes a generator of
``[seed, salt]``, with a salt from this list, so that reward noise never correlates with actions.
A test keeps the numbers distinct; they are part of every published result and never change.
"""

POLICY = 0xCA9
ENVIRONMENT = 0xE57
FORECAST = 0xF0E
EXPLANATION = 0xE9A1

"""Salts that keep random streams apart which come from the same seed.

One seed draws the function, the users, the policy and its noise. Each takes a generator of
``[seed, salt]``, with a salt from this list, so that reward noise never correlates with actions.
A test keeps the numbers distinct; they are part of every published result and never change.
"""

POLICY = 0xCA9
ENVIRONMENT = 0xE57
RIVAL = 0x21A1
FORECAST = 0xF0E
EXPLANATION = 0xE9A1
DUBEY_WORLD = 0xD2021
USCA_WORLD = 0x2025
CONTEXT_LAW = 0x1A3
TABLE_SPLIT = 0x5917
TABLE_PROTOTYPES = 0x9707
TABLE_ORDER = 0x0CE
LOG = 0x106
LOG_REPLAY = 0x4E9
LOG_FOLDS = 0xF01D
ARMS_WORLD = 0xA235
PUBLIC_ROWS = 0x9B1
DRIFT_WORLD = 0xD21F7

"""Salts of the laboratory's random streams, beside those of :mod:`capri.streams`.

A test keeps all of them distinct; they are part of every published result and never change.
"""

RIVAL = 0x21A1
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

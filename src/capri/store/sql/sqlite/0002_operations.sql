-- Actions over time. Version 0 is in the configuration; each row is a later one.
CREATE TABLE catalogues (
    version INTEGER PRIMARY KEY,
    epoch INTEGER,                    -- the first epoch that plays it, once that is planned
    actions BLOB NOT NULL             -- rows and names
) STRICT;

-- What operators did: one row for each change of mode, catalogue or key.
CREATE TABLE operations (
    generation INTEGER PRIMARY KEY,
    made REAL NOT NULL,               -- public time
    kind TEXT NOT NULL,
    record BLOB NOT NULL
) STRICT;

-- Actions over time. Version 0 is in the configuration; each row is a later one.
CREATE TABLE catalogues (
    version BIGINT PRIMARY KEY,
    epoch BIGINT,                     -- the first epoch that plays it, once that is planned
    actions BYTEA NOT NULL            -- rows and names
);

-- What operators did: one row for each change of mode, catalogue or key.
CREATE TABLE operations (
    generation BIGINT PRIMARY KEY,
    made DOUBLE PRECISION NOT NULL,   -- public time
    kind TEXT NOT NULL,
    record BYTEA NOT NULL
);

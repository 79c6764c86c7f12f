-- One policy a database. Columns named "secret" belong to users or guard them: they are sealed
-- where a store key is given. All other columns are public. Written for Postgres; schema.py says it
-- for SQLite.

CREATE TABLE policy (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    store_id TEXT NOT NULL,           -- of this history, shared by its copies alone
    configuration BYTEA NOT NULL,     -- what the policy was built from
    secret BYTEA NOT NULL             -- key of ids, salt of digests
);

-- Of a simulation: where its generators stand.
CREATE TABLE streams (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    state BYTEA NOT NULL
);

-- Of Postgres alone: the last transaction of each process, by which it knows
-- whether a COMMIT in doubt has happened.
CREATE TABLE writers (
    name TEXT PRIMARY KEY,
    turn BIGINT NOT NULL
) WITH (fillfactor = 10);             -- updated all the time: room for it on its page

-- Apart from the policy, since every decision writes it.
CREATE TABLE counter (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    issued BIGINT NOT NULL,           -- slots handed out
    generation BIGINT NOT NULL        -- publications so far
);

CREATE TABLE history (
    generation BIGINT PRIMARY KEY,
    digest TEXT NOT NULL              -- of this publication and the digest before it
);

CREATE TABLE laws (
    generation BIGINT PRIMARY KEY,
    state BYTEA NOT NULL              -- what the learner knew then
);

CREATE TABLE epochs (
    number BIGINT PRIMARY KEY,
    first BIGINT NOT NULL,            -- its first slot
    length BIGINT NOT NULL,           -- slots it was planned for
    state TEXT NOT NULL
        CHECK (state IN ('open', 'waiting', 'closed', 'released', 'learnt')),
    last BIGINT,                      -- the slot after its last one, once that is decided
    began DOUBLE PRECISION,           -- public time of its first decision
    filled DOUBLE PRECISION,          -- public time at which it was full
    closes BIGINT,                    -- number of slots at which it takes no more rewards
    closes_at DOUBLE PRECISION,       -- public time of the same
    due DOUBLE PRECISION,             -- public time from which on it takes no more rewards
    plan BYTEA NOT NULL,
    released BIGINT,                  -- generation of its release
    release BYTEA,                    -- the noisy vector, its event, the realised counts
    missed BIGINT                     -- moments of the grid at which it was not ready
);

CREATE TABLE segments (
    epoch BIGINT NOT NULL REFERENCES epochs (number),
    number BIGINT NOT NULL,
    first BIGINT NOT NULL,            -- the slot from which on it is in force
    law BIGINT NOT NULL,              -- generation of the law that is played
    segment BYTEA NOT NULL,
    PRIMARY KEY (epoch, number)
);

-- Epoch and segment of a decision follow from its number: see epochs.first and segments.first.
CREATE TABLE decisions (
    number BIGINT PRIMARY KEY,
    secret BYTEA NOT NULL             -- status, place, action, propensity, pair
);

-- At most one row a decision, of one size, however often rewards come.
CREATE TABLE rewards (
    number BIGINT PRIMARY KEY,        -- of the decision
    secret BYTEA NOT NULL             -- what the rewards make together, digests of their keys
);

-- The noise of a closed epoch is drawn once and kept here until the release is committed.
CREATE TABLE draws (
    number BIGINT PRIMARY KEY,        -- of the epoch
    secret BYTEA NOT NULL             -- what the release will publish
);

CREATE TABLE keys (
    digest TEXT PRIMARY KEY,
    number BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    expires DOUBLE PRECISION NOT NULL,
    secret BYTEA NOT NULL             -- status, action, propensity
);
CREATE INDEX keys_expire ON keys (expires);

CREATE TABLE users (
    digest TEXT PRIMARY KEY,
    total BIGINT NOT NULL
);

CREATE TABLE visits (
    digest TEXT NOT NULL REFERENCES users (digest),
    epoch BIGINT NOT NULL,
    visits BIGINT NOT NULL,
    PRIMARY KEY (digest, epoch)
);

-- Of the local model: what counted, until its epoch takes no more. Reports are private by
-- themselves, so nothing here is secret. Whether one is in the sum follows from its number.
CREATE TABLE reports (
    first BIGINT PRIMARY KEY,         -- number of the first report of the row
    epoch BIGINT NOT NULL,            -- whose bundle they answer
    size BIGINT NOT NULL,             -- how many
    messages BYTEA NOT NULL,          -- as they came, 32 bytes each; empty where they came as a sum
    total BYTEA                       -- of reports that were added up elsewhere
);

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

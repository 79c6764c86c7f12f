-- One policy a database. Columns named "secret" belong to users or guard them: they are sealed
-- where a store key is given. All other columns are public.

CREATE TABLE policy (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    line TEXT NOT NULL,               -- name of this line of history
    configuration BLOB NOT NULL,      -- what the policy was built from
    secret BLOB NOT NULL              -- key of ids, salt of digests
) STRICT;

-- Of a simulation: where its generators stand.
CREATE TABLE streams (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    state BLOB NOT NULL
) STRICT;

-- Apart from the policy, since every decision writes it.
CREATE TABLE counter (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    issued INTEGER NOT NULL,          -- slots handed out
    generation INTEGER NOT NULL       -- publications so far
) STRICT;

CREATE TABLE history (
    generation INTEGER PRIMARY KEY,
    digest TEXT NOT NULL              -- of this publication and the digest before it
) STRICT;

CREATE TABLE laws (
    generation INTEGER PRIMARY KEY,
    state BLOB NOT NULL               -- what the learner knew then
) STRICT;

CREATE TABLE epochs (
    number INTEGER PRIMARY KEY,
    first INTEGER NOT NULL,           -- its first slot
    length INTEGER NOT NULL,          -- slots it was planned for
    state TEXT NOT NULL
        CHECK (state IN ('open', 'waiting', 'closed', 'released', 'learnt')),
    last INTEGER,                     -- the slot after its last one, once that is decided
    began REAL,                       -- public time of its first decision
    filled REAL,                      -- public time at which it was full
    closes INTEGER,                   -- number of slots at which it takes no more rewards
    closes_at REAL,                   -- public time of the same
    due REAL,                         -- public time from which on it takes no more rewards
    plan BLOB NOT NULL,
    released INTEGER,                 -- generation of its release
    release BLOB,                     -- the noisy vector, its event, the realised counts
    missed INTEGER                    -- moments of the grid at which it was not ready
) STRICT;

CREATE TABLE segments (
    epoch INTEGER NOT NULL REFERENCES epochs (number),
    number INTEGER NOT NULL,
    first INTEGER NOT NULL,           -- the slot from which on it is in force
    law INTEGER NOT NULL,             -- generation of the law that is played
    segment BLOB NOT NULL,
    PRIMARY KEY (epoch, number)
) STRICT;

-- Epoch and segment of a decision follow from its number: see epochs.first and segments.first.
CREATE TABLE decisions (
    number INTEGER PRIMARY KEY,
    secret BLOB NOT NULL              -- status, place, action, propensity, pair
) STRICT;

-- At most one row a decision, of one size, however often rewards come.
CREATE TABLE rewards (
    number INTEGER PRIMARY KEY,       -- of the decision
    secret BLOB NOT NULL              -- what the rewards make together, digests of their keys
) STRICT;

-- The noise of a closed epoch is drawn once and kept here until the release is committed.
CREATE TABLE draws (
    number INTEGER PRIMARY KEY,       -- of the epoch
    secret BLOB NOT NULL              -- what the release will publish
) STRICT;

CREATE TABLE keys (
    digest TEXT PRIMARY KEY,
    number INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    expires REAL NOT NULL,
    secret BLOB NOT NULL              -- status, action, propensity
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_expire ON keys (expires);

CREATE TABLE users (
    digest TEXT PRIMARY KEY,
    total INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE visits (
    digest TEXT NOT NULL REFERENCES users (digest),
    epoch INTEGER NOT NULL,
    visits INTEGER NOT NULL,
    PRIMARY KEY (digest, epoch)
) STRICT, WITHOUT ROWID;

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

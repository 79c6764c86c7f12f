"""What a Postgres server is asked about itself: old transactions, and what it logs."""

# The number of the next transaction, and the oldest that a vacuum must regard: one that runs in the
# database or keeps a snapshot, is prepared, or is held by a replica.
NEXT = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
OLDEST = """
    SELECT least(
        pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
        (WITH next AS (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS number)
         SELECT min(next.number - age(held.number)) FROM next, (
            SELECT backend_xmin FROM pg_stat_activity
            WHERE pid <> pg_backend_pid() AND datname = current_database()
            UNION ALL SELECT transaction FROM pg_prepared_xacts
            UNION ALL SELECT xmin FROM pg_replication_slots
            UNION ALL SELECT backend_xmin FROM pg_stat_replication
         ) AS held (number) WHERE held.number IS NOT NULL))
"""


# Whether a statement that is logged is logged with its values (the default), and whether one of
# ours would be.
LOGGED = """
    SELECT current_setting('log_parameter_max_length') <> '0',
        current_setting('log_statement') IN ('mod', 'all')
        OR current_setting('log_min_duration_statement') <> '-1'
        OR (current_setting('log_min_duration_sample') <> '-1'
            AND current_setting('log_statement_sample_rate')::float > 0)
        OR current_setting('log_transaction_sample_rate')::float > 0
"""

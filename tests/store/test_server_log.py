"""A server's own log is read by others than the curator: it gets no values."""

import numpy as np
import pytest

from capri import PrivacyLeakWarning
from postgres_server import PostgresServer
from stored_policies import policy


def test_values_stay_out_of_the_servers_log(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """Who may, sets it for the session; who may not is warned, unless the values are sealed."""
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    marker = np.float64(0.123456789).tobytes().hex()
    with postgres_server.connection() as connection:
        connection.execute(f"ALTER DATABASE {name} SET log_statement = 'all'")
    with policy(postgres_url) as run:
        run.update(run.act([0.2]), 0.123456789)
    log = postgres_server.log()
    assert "INSERT INTO rewards" in log
    assert marker not in log
    role = f"plain_{name}"
    with postgres_server.connection() as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
    try:
        with postgres_server.connection(name) as connection:
            connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
        theirs = postgres_url.replace("postgres@", f"{role}@")
        with pytest.warns(PrivacyLeakWarning, match="log_parameter_max_length set to 0"):
            policy(theirs).close()
        with postgres_server.connection() as connection:
            connection.execute(f"ALTER ROLE {role} SET log_parameter_max_length = 0")
        policy(theirs).close()  # a warning would be an error
        with postgres_server.connection() as connection:
            connection.execute(f"ALTER ROLE {role} RESET log_parameter_max_length")
            connection.execute(f"ALTER DATABASE {name} RESET log_statement")
        policy(theirs).close()
    finally:
        with postgres_server.connection(name) as connection:
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")

// Vectors take seconds; on a machine that is busy with other tests, several times as long.
export default { test: { testTimeout: 60_000 } };

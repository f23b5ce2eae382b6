"""A simulated engine behind the three real wire protocols: for tests, demos and benchmarks."""

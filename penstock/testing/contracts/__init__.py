"""Contract suites: what every implementation promises, as tests that its own test class inherits."""

"""What holds for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Machines differ, so no example has a deadline. All examples of a test share its fixtures, which keep no state.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
settings.load_profile("suite")

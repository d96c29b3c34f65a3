"""The real Triton and services in front of it, for what deploy/ watches them with."""

from tests.integration.conftest import repository, serve, triton

__all__ = ["repository", "serve", "triton"]

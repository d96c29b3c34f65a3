"""How much memory a service holds, and has held at most."""

from __future__ import annotations

from pathlib import Path

from tests.service import Service


def resident(service: Service) -> int:
    """Bytes of memory that the service holds, without what it shares with the predictor."""
    return _status(service, "RssAnon:")


def peak(service: Service) -> int:
    """The most bytes that it has held, code and shared memory included."""
    return _status(service, "VmHWM:")


def reset_peak(service: Service) -> int:
    """Has the system count the peak anew, from what is held now."""
    (Path("/proc") / str(service.process.pid) / "clear_refs").write_text("5")
    return peak(service)


def _status(service: Service, name: str) -> int:
    status = (Path("/proc") / str(service.process.pid) / "status").read_text()
    return int(status.partition(name)[2].split()[0]) * 1024

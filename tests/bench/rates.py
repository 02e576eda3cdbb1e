"""How much of a provider's limits a fleet uses, and how many calls are refused: eight workers' callers over real HTTP.

    PYTHONPATH=tests python -m tests.bench.rates --seconds 180

The provider counts requests and tokens of every 60 seconds, and requests of every 5, and refuses what is above. One JSON line for each limit
that is the tighter one.
"""

from __future__ import annotations

import argparse
import json

import rate_callers

from flujo_client.config.manager import Settings
from flujo_client.embedded import Embedded
from flujo_worker.domain.rate import RateRules
from tests.services import passable_folder

LIMITS = {
    "requests": RateRules(requests=300, tokens=1_000_000, slow_start_s=0.0),
    "tokens": RateRules(requests=3_000, tokens=30_000, slow_start_s=0.0),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0)
    seconds = parser.parse_args().seconds
    for name, rules in LIMITS.items():
        with Embedded(passable_folder() / "bench") as services:
            settings = Settings().with_services(services.database_url, services.broker_url)
            provider = rate_callers.run(seconds, rules, settings)
        figures = {"calls": provider.calls, "refused": provider.refused, "most": provider.most, "used": provider.used}
        print(json.dumps({"limit": name, **figures}), flush=True)


if __name__ == "__main__":
    main()

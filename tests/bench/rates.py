"""How much of a provider's limits a fleet uses, and how many calls are refused: over real HTTP, by eight workers' callers, then by eight workers.

    PYTHONPATH=tests/acceptance python -m tests.bench.rates --seconds 180

The provider counts requests and tokens of every 60 seconds, and requests of every 5, and refuses what is above. One JSON line for each limit
that is the tighter one; `workers` has the requests' limit again, for a backlog of runs in eight worker processes.
"""

import argparse
import json
import time

import pytest

from flujo_client.config.manager import Settings
from flujo_client.embedded import Embedded
from flujo_worker.domain.rate import RateRules
from tests.support import rate_callers
from tests.support.fleet import BRISK, Site
from tests.support.openai_server import OpenAIServer
from tests.support.services import temporary_folder

LIMITS = {
    "requests": RateRules(requests=300, tokens=1_000_000, slow_start_s=0.0),
    "tokens": RateRules(requests=3_000, tokens=30_000, slow_start_s=0.0),
}


WORKERS = 8


def run_workers(seconds: float, rules: RateRules) -> rate_callers.StrictProvider:
    """Let workers run a backlog for so many seconds; return the provider, which has counted."""
    provider = rate_callers.StrictProvider(rules)
    limits = {"requests_per_minute": int(rules.requests), "tokens_per_minute": int(rules.tokens)}
    rate_limits = {"models": {"openai:limited": limits}, "slow_start_s": 0.0}
    with (
        OpenAIServer(provider) as server,
        temporary_folder() as folder,
        Embedded(folder / "bench") as services,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("OPENAI_BASE_URL", server.url)
        patch.setenv("OPENAI_API_KEY", "none")
        with Site(services, folder, worker=BRISK, rate_limits=rate_limits) as site:
            backlog = int(rules.requests * (seconds / 60 + 1))
            site.client.enqueue_many("rate_pipelines:asking", [f"{n} a word" * 20 for n in range(backlog)])
            site.workers(WORKERS)
            time.sleep(seconds)
    return provider


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--only", choices=[*LIMITS, "workers"])
    given = parser.parse_args()
    seconds = given.seconds
    for name, rules in LIMITS.items():
        if given.only not in (None, name):
            continue
        with temporary_folder() as folder, Embedded(folder / "bench") as services:
            settings = Settings().with_services(services.database_url, services.broker_url)
            provider = rate_callers.run(seconds, rules, settings)
        tell(name, provider)
    if given.only in (None, "workers"):
        tell("workers", run_workers(seconds, LIMITS["requests"]))


def tell(name: str, provider: rate_callers.StrictProvider) -> None:
    """Print what the provider has counted."""
    figures = {"calls": provider.calls, "refused": provider.refused, "most": provider.most, "used": provider.used}
    print(json.dumps({"limit": name, **figures}), flush=True)


if __name__ == "__main__":
    main()

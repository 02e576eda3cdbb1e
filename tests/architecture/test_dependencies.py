"""Dependencies have permissive licences, and versions that are pinned with hashes. `make audit` runs this alone.

Known vulnerabilities change without us, and are looked up over a network: `make audit` does that too, with pip-audit.
"""

import re
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from flujo_demo.license_facts import derive_verdict, read_metadata
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKED_EXTRAS = ("ag-ui", "live", "worker", "aop-extra", "embedded", "encryption", "metrics", "otel", "schedules", "ui")
UNLOCKED_EXTRAS = {"models": "every provider's SDK, which neither tests nor deployments install as a whole"}
REVIEWED = {
    "certifi": "MPL-2.0",
    "orjson": "MPL-2.0 AND (Apache-2.0 OR MIT)",
    "psycopg": "LGPL-3.0-only",
    "psycopg-binary": "LGPL-3.0-only",
    "psycopg-pool": "LGPL-3.0-only",
}
"""Not permissive, and used unchanged as separate libraries, which asks nothing of code that imports them."""
ENTRY = re.compile(
    r"^(?P<pin>[a-z0-9][^\s;\\]*)(?: ; (?P<marker>[^\\\n]+?))? \\\n(?P<hashes>(?:    --hash=.*\n?)+)", re.MULTILINE
)
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?")


@cache
def locked():
    """The pinned requirements by name; a package may have several, for different systems."""
    found = {}
    for entry in ENTRY.finditer((ROOT / "requirements.lock").read_text(encoding="utf-8")):
        pinned = Requirement(entry["pin"])
        marker = None if entry["marker"] is None else Marker(entry["marker"])
        found.setdefault(canonicalize_name(pinned.name), []).append((pinned, marker, entry["hashes"]))
    return found


def declared():
    extras = PROJECT["project"]["optional-dependencies"]
    texts = [
        *PROJECT["project"]["dependencies"],
        *PROJECT["dependency-groups"]["dev"],
        *(each for name in LOCKED_EXTRAS for each in extras[name]),
    ]
    return {text: Requirement(text) for text in texts}


def shipped():
    """The names of what `pip install flujo-worker` with its extras brings, as it is installed here."""
    waiting, seen = [("flujo-worker", frozenset(LOCKED_EXTRAS))], set()
    while waiting:
        name, extras = current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        required = [Requirement(each) for each in metadata.requires(name) or ()]
        waiting += [
            (canonicalize_name(each.name), frozenset(each.extras)) for each in required if applies(each, extras)
        ]
    return sorted({name for name, _ in seen})


def applies(required, extras):
    marker = required.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras})


def test_every_extra_is_locked_or_listed_as_not_locked():
    assert sorted(PROJECT["project"]["optional-dependencies"]) == sorted([*LOCKED_EXTRAS, *UNLOCKED_EXTRAS])


@pytest.mark.parametrize("text", declared())
def test_what_is_required_is_pinned_in_a_version_that_fits(text):
    wanted = declared()[text]
    pins = locked()[canonicalize_name(wanted.name)]
    for pinned, _, _ in pins:
        [pin] = pinned.specifier
        assert pin.operator == "=="
        assert wanted.specifier.contains(pin.version, prereleases=True), f"renew requirements.lock: {pinned}"


def test_every_pin_has_hashes():
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    begun = [line for line in lock.splitlines() if not line.startswith(("    --hash=", "#")) and line.strip()]
    assert sum(map(len, locked().values())) == len(begun) > 50
    for pins in locked().values():
        for pinned, _, hashes in pins:
            assert all(HASH.fullmatch(line) for line in hashes.splitlines()), pinned


def test_what_is_installed_is_what_is_locked():
    """What was tested is what the lock names."""
    for name in shipped():
        if name != "flujo-worker":
            fitting = [pinned for pinned, marker, _ in locked()[name] if marker is None or marker.evaluate()]
            assert [each.specifier.contains(metadata.version(name), prereleases=True) for each in fitting] == [True], (
                name
            )


def test_what_users_install_is_under_permissive_licences():
    """But for what was reviewed, as long as its licence stays what it was."""
    verdicts = {name: derive_verdict(read_metadata(name)) for name in shipped()}
    others = {name: verdict.spdx for name, verdict in verdicts.items() if verdict.category != "permissive"}
    assert others == REVIEWED


def test_a_copyleft_dependency_would_be_seen(monkeypatch):
    """hypothesis is under MPL-2.0, and stays a tool of ours."""
    requires = metadata.requires
    monkeypatch.setattr(
        metadata, "requires", lambda name: [*requires(name), "hypothesis"] if name == "celery" else requires(name)
    )
    assert derive_verdict(read_metadata("hypothesis")).category == "copyleft"
    assert "hypothesis" in shipped()

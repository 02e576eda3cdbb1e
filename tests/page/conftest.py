"""What the tests of the page share: a fleet that has come to all its stops, a process that serves the page, and browsers."""

import shutil
import sys
from pathlib import Path

import pytest
from serving import serving
from stopped_fleet import stopped_fleet

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
MISSING = "chromium and chromedriver are not installed (Debian: apt-get install chromium chromium-driver)"


@pytest.fixture(scope="session")
def fleet(services, tmp_path_factory):
    with stopped_fleet(services, tmp_path_factory.mktemp("stops")) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def page(fleet):
    """The address of the page, served by `flujo ui`."""
    flujo = Path(sys.executable).with_name("flujo")
    with serving(fleet.site.settings, str(flujo), "ui", "--port", "0") as address:
        yield address


@pytest.fixture
def open_browser(request):
    """Open a browser on the page, or on another address; the keywords are those of `Browser`."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip(MISSING)
    from browser import Browser

    browsers = []

    def open_one(base=None, **options):
        base = base or request.getfixturevalue("page")
        browsers.append(Browser(base, chromium=CHROMIUM, driver=DRIVER, **options))
        return browsers[-1]

    yield open_one
    for each in browsers:
        each.quit()

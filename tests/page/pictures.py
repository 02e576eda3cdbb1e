"""Take the pictures of the page that the documents show, of a fleet at all its stops. Run it as `make pictures`, and look at what it took."""

import io
import sys
from pathlib import Path

from browser import Browser
from conftest import CHROMIUM, DRIVER, MISSING
from PIL import Image
from serving import serving
from stopped_fleet import stopped_fleet

from flujo_client.embedded import Embedded
from tests.support.services import temporary_folder

DOCS = Path(__file__).parents[2] / "docs"
COLOURS = 24
MAX_BYTES = 60_000


def main():
    if CHROMIUM is None or DRIVER is None:
        sys.exit(MISSING)
    with temporary_folder() as folder, Embedded(folder / "flujo") as services:
        (site := folder / "site").mkdir()
        with stopped_fleet(services, site) as fleet:
            for pipeline in ("judge", "invoice"):  # the newest lines are of several runs
                for run in fleet.site.client.enqueue_many(f"desk:{pipeline}", ["A-7"] * 6, tenant="acme"):
                    run.result(timeout=60)
            fleet.runs["HTML in a question"].cancel()
            flujo = Path(sys.executable).with_name("flujo")
            with serving(fleet.site.settings, str(flujo), "ui", "--port", "0") as address:
                take(address, fleet.runs)


def take(address, runs):
    light, dark = (
        Browser(address, chromium=CHROMIUM, driver=DRIVER, **look) for look in ({}, {"is_dark": True, "width": 360})
    )
    save(light, "/?tenant=acme", "page-runs.png", 800)
    save(light, f"/runs/{runs['error in a map'].id}", "page-run.png", 1100)
    save(light, "/approvals?tenant=acme", "page-approvals.png", 620)
    save(dark, "/?tenant=acme", "page-phone.png", 760)
    light.quit()
    dark.quit()


def save(browser, path, name, height):
    """Save a picture with few colours: half are its most frequent ones, half its most different ones."""
    browser.open(path)
    picture = Image.open(io.BytesIO(browser.picture(height))).convert("RGB")
    frequent = sorted(picture.getcolors(picture.width * picture.height), reverse=True)[:COLOURS]
    different = picture.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE).getpalette()
    palette = Image.new("P", (1, 1))
    palette.putpalette([*(each for _, colour in frequent for each in colour), *different])
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(DOCS / name, optimize=True)
    size = (DOCS / name).stat().st_size
    print(f"{name}: {size:,} bytes")
    if size > MAX_BYTES:
        sys.exit(f"{name} must have up to {MAX_BYTES:,} bytes")


if __name__ == "__main__":
    main()

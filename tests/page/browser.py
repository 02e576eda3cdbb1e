"""Chromium for the tests of the page: as wide, as dark and with as much script as a test asks for, and used by keys."""

from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.support.fleet import wait_until

HEIGHT = 900
PHONE = 600
"""Up to this width a device is a phone."""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
LISTEN = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
    window.violations.push(event.violatedDirective + " " + event.blockedURI));
"""
IS_FOCUSED = (
    "const it = document.activeElement; return it.matches(arguments[0]) && it.textContent.includes(arguments[1])"
)
"""One question: between two, a page that is live may put another element in its place."""
AXE = """
const done = arguments[arguments.length - 1];
axe.run(document, {runOnly: arguments[0]}).then((found) => done(found.violations.map((each) =>
    each.impact + " " + each.id + ": " + each.nodes.slice(0, 3).map((node) => node.html.slice(0, 120)).join(" | "))));
"""


class Browser:
    """A browser of its own.

    Args:
        base: the address that paths continue.
        chromium: its program. driver: that of chromedriver.
        width: in pixels.
        is_dark: what the person's system prefers.
        has_scripts: whether pages may run scripts.
    """

    def __init__(self, base, *, chromium, driver, width=1440, is_dark=False, has_scripts=True):
        options = Options()
        options.binary_location = chromium
        for each in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
            options.add_argument(each)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        if not has_scripts:
            options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
        self.base, self.width = base, width
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        self._command("Page.addScriptToEvaluateOnNewDocument", source=LISTEN)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._command("Emulation.setEmulatedMedia", features=[scheme])
        self.set_height(HEIGHT)

    def quit(self):
        self.driver.quit()

    def _command(self, name, **values):
        self.driver.execute_cdp_cmd(name, values)

    def set_height(self, height):
        size = {"width": self.width, "height": height, "deviceScaleFactor": 1, "mobile": self.width < PHONE}
        self._command("Emulation.setDeviceMetricsOverride", **size)

    def open(self, path):
        self.driver.get(self.base + path)

    @property
    def path(self):
        """Where it is now, after the base."""
        return self.driver.current_url.removeprefix(self.base)

    def find(self, css):
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def count(self, css):
        return len(self.driver.find_elements(By.CSS_SELECTOR, css))

    def text(self, css="main"):
        """What a person reads there; nothing while it is replaced."""
        try:
            return self.find(css).text
        except (NoSuchElementException, StaleElementReferenceException):
            return ""

    def wait_for(self, text, css="main"):
        """Wait until a person can read it there."""
        wait_until(lambda: text in self.text(css), 60, what=lambda: f"{text!r} in {self.path}: {self.text(css)[:2000]}")

    # by keys

    def press(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()

    def tab_to(self, css, text="", most=150):
        """Press the tabulator until what has the focus matches and says the text."""
        for _ in range(most):
            self.press(Keys.TAB)
            if self.driver.execute_script(IS_FOCUSED, css, text):
                return
        raise AssertionError(f"{css} {text!r} is not reached by {most} tabulators on {self.path}")

    def enter(self, css, text=""):
        """Press Enter where the tabulator leads, and wait for another page."""
        with self._to_another_page():
            self.tab_to(css, text)
            self.press(Keys.ENTER)

    def click(self, css):
        """Click, and wait for another page."""
        with self._to_another_page():
            wait_until(lambda: self._is_clicked(css), 60, what=css)

    def _is_clicked(self, css):
        """Click what is there now; return False if the page was read anew in between."""
        with suppress(StaleElementReferenceException):
            self.find(css).click()
            return True
        return False

    @contextmanager
    def _to_another_page(self):
        self.driver.execute_script("window.isBefore = true")
        yield
        is_there = "return !window.isBefore && document.readyState === 'complete'"
        wait_until(lambda: self.driver.execute_script(is_there), 60, what=lambda: f"{self.path} did not answer")

    # what is wrong with it

    def troubles(self):
        """What the console and the content security policy reported since the last time, but for the status of the page itself."""
        own = f"{self.driver.current_url} - Failed to load resource"
        logged = [each["message"] for each in self.driver.get_log("browser") if each["level"] == "SEVERE"]
        reported = self.driver.execute_script("return (window.violations || []).splice(0)")
        return [each for each in logged if not each.startswith(own)] + reported

    def status(self):
        """The status that the page came with."""
        return self.driver.execute_script("return performance.getEntriesByType('navigation')[0].responseStatus")

    def overflow(self):
        """By how many pixels it is wider than its window."""
        return self.driver.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )

    def unlawful(self):
        """What axe finds of the rules of WCAG 2.2, A and AA, and of best practices."""
        self.driver.execute_script(axe())
        return self.driver.execute_async_script(AXE, RULES)

    def picture(self, height):
        """Return a PNG of the page, as high as it is up to so many pixels."""
        self.set_height(min(height, self.driver.execute_script("return document.documentElement.scrollHeight")))
        taken = self.driver.get_screenshot_as_png()
        self.set_height(HEIGHT)
        return taken


@cache
def axe():
    """The script of axe-core. The package around it would drive a browser with Playwright; nothing of that is used."""
    [folder] = find_spec("axe_playwright_python").submodule_search_locations
    return (Path(folder) / "axe.min.js").read_text(encoding="utf-8")

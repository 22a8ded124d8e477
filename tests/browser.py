"""Chromium with an empty profile, driven by Selenium, and what its pages show and ask for."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1280,900"
)


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A browser that keeps its messages and its requests; it ends with the block."""
    from selenium import webdriver

    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    assert all(programs), "expected chromium and chromedriver: apt-get install chromium chromium-driver"
    options = webdriver.ChromeOptions()
    options.binary_location = str(programs[0])
    for flag in [*FLAGS.split(), f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(str(programs[1]))) as driver:
        yield driver


class Shown:
    """What a browser shows; its messages and requests begin anew."""

    def __init__(self, driver: Any):
        self.driver = driver
        driver.get("about:blank")
        for log in ("browser", "performance"):
            driver.get_log(log)

    def requests(self) -> set[str]:
        """The addresses that were asked for since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return {one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"}

    def run(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(f"return {code}", *arguments)

    def all(self, selector: str, code: str) -> Any:
        """What the code makes of every such `one`."""
        return self.run(f"[...document.querySelectorAll(arguments[0])].map(one => {code})", selector)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def press(self, *keys: str, held: Sequence[str] = ()) -> None:
        from selenium.webdriver import ActionChains

        chain = ActionChains(self.driver)
        for one in held:
            chain.key_down(one)
        chain.send_keys(*keys)
        for one in held:
            chain.key_up(one)
        chain.perform()

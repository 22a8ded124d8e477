"""Chromium with an empty profile, driven by Selenium, and what it asked for."""

import json
import shutil
from collections.abc import Iterator
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


def requests_of(driver: Any) -> set[str]:
    """The addresses that a browser asked for since the last call."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return {one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"}

"""Chromium, driven by its own driver: those of this machine, or else Debian's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webdriver import WebDriver

from penstock.testing.kafka_jars import cache_folder, locked
from tests.support.jobs.home import wait_until

_INSTALL_S = 300
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


@contextmanager
def browser(width: int = 1400, height: int = 900, *, dark: bool = False) -> Iterator[WebDriver]:
    """A browser with an empty profile. Skips the test where there is none."""
    chromium, driver = _programs()
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for each in _OPTIONS:
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(driver))
    try:
        resize(found, width, height)
        look = "dark" if dark else "light"
        media = {"features": [{"name": "prefers-color-scheme", "value": look}]}
        found.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        yield found
    finally:
        found.quit()


def resize(found: WebDriver, width: int, height: int) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    found.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def complaints(found: WebDriver) -> list[str]:
    """The errors and warnings that the page has logged."""
    return [
        entry["message"]
        for entry in found.execute("getLog", {"type": "browser"})["value"]
        if entry["level"] in {"SEVERE", "WARNING"}
    ]


def _programs() -> tuple[str, str]:
    with locked(cache_folder() / "chromium", _INSTALL_S):
        if _found() is None and os.getuid() == 0 and shutil.which("apt-get"):
            command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium", "chromium-driver"]
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(command, capture_output=True, env=environment, timeout=_INSTALL_S, check=False)
    programs = _found()
    if programs is None:
        pytest.skip("no browser: install Debian's packages chromium and chromium-driver")
    return programs


def _found() -> tuple[str, str] | None:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    return None if chromium is None or driver is None else (chromium, driver)


def click(page: WebDriver, name: str) -> None:
    """Press the button of this name, which may be made again at any moment."""
    found = "[...document.querySelectorAll('button')].find(button => button.textContent === arguments[0])"
    script = f"const button = {found}; button?.click(); return !!button"
    wait_until(lambda: page.execute_script(script, name), f"the button {name!r}")

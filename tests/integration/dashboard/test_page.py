"""The dashboard in a browser: a job that does not run, with hostile keys, and a job of many tasks and stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from penstock import admin
from penstock.dashboard.server import Dashboard
from tests.support.jobs.dashboards import TOKEN, dashboard
from tests.support.jobs.example_job import ExampleJob, publish, run
from tests.support.jobs.home import wait_until
from tests.support.tools.browser import browser, click, complaints, resize
from tests.support.tools.fixtures import fixture_of

JOB = "flights-1"
HOSTILE = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("job")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_HOME", str(folder / "home"))
        ExampleJob(folder / "home", folder / "kept")
        publish([(HOSTILE, 17)])
        run()
        with dashboard() as found:
            yield found


page = fixture_of(browser, using=(), scope="module")


def shown(page: WebDriver) -> str:
    return page.find_element(By.TAG_NAME, "body").text


def test_a_job_is_read_and_drained_and_hostile_keys_are_texts(page: WebDriver, served: Dashboard) -> None:
    page.get(f"{served.url_with_token}&job={JOB}")
    wait_until(lambda: "Not running" in shown(page), "the page of the job")
    assert "token" not in page.current_url

    click(page, "Look up")
    wait_until(lambda: "onerror" in shown(page), "the entries")
    assert page.find_elements(By.CSS_SELECTOR, "#entries img, #entries script") == []
    assert [cell.text for cell in page.find_elements(By.CSS_SELECTOR, "#entries tr td:nth-child(2)")].count("17") == 1

    click(page, "drain…")
    wait_until(lambda: "reads no more input" in shown(page), "what the drain would do")
    with admin.open_job(JOB) as job:
        assert admin.status(job).drain.awaiting == ()
    click(page, "Yes: drain")
    with admin.open_job(JOB) as job:
        wait_until(lambda: admin.status(job).drain.awaiting, "the request")
    click(page, "Close")
    click(page, "cancel drain…")
    click(page, "Yes: cancel drain")
    with admin.open_job(JOB) as job:
        wait_until(lambda: not admin.status(job).drain.awaiting, "the end of the request")
    assert page.title.startswith(JOB)
    assert complaints(page) == []


def test_without_a_token_nothing_is_shown_and_with_it_a_reload_shows_the_same(served: Dashboard) -> None:
    with browser() as page:
        page.get(f"{served.url}#job={JOB}")
        for token in ("another", TOKEN):
            wait_until(lambda: page.find_elements(By.NAME, "token"), "the question")
            assert "Not running" not in shown(page)
            page.find_element(By.NAME, "token").send_keys(token)
            click(page, "Go on")
        wait_until(lambda: "Not running" in shown(page), "the page of the job")
        page.refresh()
        wait_until(lambda: "Not running" in shown(page), "the page after it was loaded again")
        assert page.get_cookies() == [], "another server of this host would get them"
        assert TOKEN not in page.current_url
        assert page.execute_script("return document.referrer") == ""


def test_the_list_leads_to_a_job_and_back(page: WebDriver, served: Dashboard) -> None:
    page.get("about:blank")
    page.get(served.url_with_token)
    wait_until(lambda: page.find_elements(By.LINK_TEXT, JOB), "the list")
    page.find_element(By.LINK_TEXT, JOB).click()
    wait_until(lambda: "Inputs, as of the last checkpoint" in shown(page), "the page of the job")
    page.find_element(By.ID, "home").click()
    wait_until(lambda: page.find_elements(By.LINK_TEXT, JOB), "the list")


@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_is_wider_than_the_window(page: WebDriver, served: Dashboard, width: int) -> None:
    resize(page, width, 900)
    page.get("about:blank")
    page.get(f"{served.url_with_token}&job={JOB}")
    wait_until(lambda: "Look into a store" in shown(page), "the page of the job")
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    tables = "[...document.querySelectorAll('.scroll')]"
    cut = page.execute_script(f"return {tables}.filter(each => each.scrollWidth > each.clientWidth + 1).length")
    assert width < 1400 or cut == 0, "no table has to be scrolled on a large screen"


def test_a_dashboard_that_is_gone_is_said_and_found_again(page: WebDriver) -> None:
    with dashboard() as first:
        page.get(f"{first.url_with_token}&job={JOB}")
        wait_until(lambda: "as of" in shown(page), "the page")
    wait_until(lambda: "what you see is old" in shown(page), "the end of the connection")

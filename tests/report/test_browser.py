"""The page in a real browser: it works, it is quiet, and it fits a phone."""

from __future__ import annotations

import csv
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedcraft.report import write_page
from fedcraft.report.watch import LivePage, serve
from fedcraft.runs import Run

selenium = pytest.importorskip(
    "selenium", reason="BROWSER TEST NOT RUN: selenium is missing; pip install selenium"
)
from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="BROWSER TEST NOT RUN: no Chromium; apt-get install chromium chromium-driver",
    ),
]
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--force-prefers-reduced-motion"),
)
Driver = webdriver.Chrome


@pytest.fixture(scope="module")
def page(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_page(runs, tmp_path_factory.mktemp("browser") / "page.html").as_uri()


@pytest.fixture(scope="module")
def crowded_page(crowd: list[Run], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_page(crowd, tmp_path_factory.mktemp("crowded") / "page.html").as_uri()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield browser
    browser.quit()


@pytest.fixture
def opened(driver: Driver, page: str) -> Driver:
    show(driver, page, 1280, "light")
    return driver


def show(driver: Driver, page: str, width: int, theme: str) -> None:
    driver.get_log("browser")
    driver.get_log("performance")
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    driver.get(page)


def chart(driver: Driver, name: str) -> Any:
    return driver.find_element(By.CSS_SELECTOR, f'[data-chart="{name}"]')


def lines(driver: Driver) -> int:
    return len(chart(driver, "convergence").find_elements(By.CSS_SELECTOR, "path.series"))


def requests(driver: Driver) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [params["request"]["url"] for params in sent]


def assert_quiet(driver: Driver, page: str) -> None:
    assert driver.get_log("browser") == []
    assert [url for url in requests(driver) if url not in (page, "data:,")] == []


def test_every_chart_is_drawn_and_the_page_is_quiet(opened: Driver, page: str) -> None:
    figures = opened.find_elements(By.CSS_SELECTOR, "main figure.chart")
    assert len(figures) == 13
    for figure in figures:
        assert figure.find_elements(By.CSS_SELECTOR, "svg *"), figure.get_attribute("data-chart")
    assert_quiet(opened, page)


def test_the_network_log_does_record_requests(opened: Driver, page: str) -> None:
    """The quietness above would mean nothing if the log were deaf."""
    assert page in requests(opened)


def test_a_method_can_be_switched_off_and_on(opened: Driver, page: str) -> None:
    chip = opened.find_element(By.CSS_SELECTOR, '.chip[data-method="fedavg"]')
    before = lines(opened)
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    assert lines(opened) == before - 1
    chip.send_keys(Keys.ENTER)
    assert lines(opened) == before
    chip.click()
    opened.find_element(By.ID, "all").click()
    assert lines(opened) == before
    assert_quiet(opened, page)


def test_all_methods_off_is_not_an_error(opened: Driver, page: str) -> None:
    for chip in opened.find_elements(By.CSS_SELECTOR, ".chip[data-method]"):
        chip.click()
    assert "No method is selected" in chart(opened, "convergence").text
    assert_quiet(opened, page)


@pytest.mark.parametrize("metric", ["worst10", "best10", "std", "train_loss"])
def test_the_metric_can_be_switched(opened: Driver, page: str, metric: str) -> None:
    before = chart(opened, "convergence").get_attribute("innerHTML")
    opened.find_element(By.CSS_SELECTOR, f'input[value="{metric}"]').send_keys(Keys.SPACE)
    assert chart(opened, "convergence").get_attribute("innerHTML") != before
    assert_quiet(opened, page)


@pytest.mark.parametrize("shape", ["histogram", "ecdf"])
def test_the_distribution_has_three_views(opened: Driver, page: str, shape: str) -> None:
    opened.find_element(By.CSS_SELECTOR, f'input[value="{shape}"]').send_keys(Keys.SPACE)
    drawn = chart(opened, "distribution").find_elements(By.CSS_SELECTOR, "path.series")
    assert len(drawn) == 7
    assert_quiet(opened, page)


def test_the_conflict_view_follows_its_method(opened: Driver, page: str) -> None:
    select = Select(opened.find_element(By.CSS_SELECTOR, '[data-control="conflict"] select'))
    assert select.first_selected_option.text == "CRAFT"
    before = chart(opened, "cosine").get_attribute("innerHTML")
    select.select_by_value("fedavg")
    assert chart(opened, "cosine").get_attribute("innerHTML") != before
    assert not chart(opened, "correction").is_displayed()
    select.select_by_value("craft")
    assert chart(opened, "correction").is_displayed()
    assert chart(opened, "cosine").get_attribute("innerHTML") == before
    assert_quiet(opened, page)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("convergence", ["Round", "CRAFT", "FedAvg", "±"]),
        ("distribution", ["Median"]),
        ("radar", ["Best 10 %", "Worst 10 %"]),
        ("spread", ["Std over clients"]),
        ("winners", ["Seed 0", "gain", "lose"]),
        ("clients", ["Client", "CRAFT", "opens this client"]),
        ("gains", ["Client", "Difference"]),
        ("conflicts", ["Step taken"]),
        ("cosine", ["Smallest cosine"]),
        ("rates", ["Server lr", "Seeds"]),
        ("labels", ["samples"]),
        ("timing", ["train", "Peak memory"]),
    ],
)
def test_hovering_tells_the_numbers(opened: Driver, page: str, name: str, words: list[str]) -> None:
    figure = chart(opened, name).find_element(By.CSS_SELECTOR, "svg")
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", figure)
    ActionChains(opened).move_to_element(figure).perform()
    tooltip = opened.find_element(By.ID, "tooltip")
    assert tooltip.is_displayed()
    for word in words:
        assert word in tooltip.text
    ActionChains(opened).move_to_element(opened.find_element(By.CSS_SELECTOR, "h1")).perform()
    assert not tooltip.is_displayed()
    assert_quiet(opened, page)


def test_the_keyboard_walks_through_a_chart(opened: Driver, page: str) -> None:
    figure = chart(opened, "convergence").find_element(By.CSS_SELECTOR, "svg")
    tooltip = opened.find_element(By.ID, "tooltip")
    figure.send_keys(Keys.ARROW_RIGHT)
    assert tooltip.text.startswith("Round 0")
    figure.send_keys(Keys.ARROW_RIGHT)
    assert tooltip.text.startswith("Round 5")
    figure.send_keys(Keys.ESCAPE)
    assert not tooltip.is_displayed()
    assert figure.get_attribute("aria-label")


def background(driver: Driver) -> str:
    return str(driver.execute_script("return getComputedStyle(document.body).backgroundColor"))


def test_light_and_dark_follow_the_system_and_the_button(driver: Driver, page: str) -> None:
    show(driver, page, 1280, "light")
    light = background(driver)
    show(driver, page, 1280, "dark")
    dark = background(driver)
    assert light != dark
    button = driver.find_element(By.ID, "theme")
    button.click()
    assert background(driver) == light
    button.click()
    assert background(driver) == dark
    button.click()
    assert "Auto" in button.text
    assert_quiet(driver, page)


OUTSIDE = """
  return [...document.querySelectorAll('figure.chart text')].filter((text) => {
    const own = text.getBoundingClientRect();
    const card = text.closest('section, dialog').getBoundingClientRect();
    return own.left < card.left || own.right > card.right + 0.5;
  }).map((text) => text.textContent)"""
OVERLAPPING = """
  return [...document.querySelectorAll('figure.chart svg')].flatMap((svg) => {
    const texts = [...svg.querySelectorAll('text')];
    const boxes = texts.map((t) => [t.textContent, t.getBoundingClientRect()]);
    return boxes.flatMap(([name, a], i) => boxes.slice(i + 1).filter(([, b]) =>
      Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
      && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 5
    ).map(([other]) => `${svg.getAttribute('aria-label')}: ${name} / ${other}`));
  })"""


def assert_fits(driver: Driver, width: int) -> None:
    driver.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    root = "const root = document.documentElement; "
    wide, room = driver.execute_script(root + "return [root.scrollWidth, root.clientWidth]")
    assert wide <= room <= width
    assert driver.execute_script(OUTSIDE) == []
    assert driver.execute_script(OVERLAPPING) == []


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_nothing_sticks_out_and_no_label_covers_another(
    driver: Driver, page: str, width: int
) -> None:
    show(driver, page, width, "dark")
    assert_fits(driver, width)
    assert_quiet(driver, page)


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_all_methods_at_once_still_fit(driver: Driver, crowded_page: str, width: int) -> None:
    show(driver, crowded_page, width, "light")
    assert_fits(driver, width)
    assert_quiet(driver, crowded_page)


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_view_of_a_client_fits(driver: Driver, page: str, width: int) -> None:
    show(driver, f"{page}#client=0,0,13", width, "light")
    assert sheet(driver).is_displayed()
    assert_fits(driver, width)
    wide, room = driver.execute_script(
        "const d = document.getElementById('client'); return [d.scrollWidth, d.clientWidth]"
    )
    assert wide <= room


def sheet(driver: Driver) -> Any:
    return driver.find_element(By.ID, "client")


def title(driver: Driver) -> str:
    return str(driver.find_element(By.ID, "client-title").text)


def click_on(driver: Driver, figure: Any, across: float, down: float = 0.5) -> None:
    """Click on a place of a chart, as a share of its width and height."""
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", figure)
    box = figure.size
    x, y = (across - 0.5) * box["width"], (down - 0.5) * box["height"]
    ActionChains(driver).move_to_element_with_offset(figure, int(x), int(y)).click().perform()


@pytest.mark.parametrize("name", ["clients", "gains", "labels"])
def test_a_click_opens_the_client(opened: Driver, page: str, name: str) -> None:
    figure = chart(opened, name).find_element(By.CSS_SELECTOR, "svg")
    click_on(opened, figure, 0.3)
    assert sheet(opened).is_displayed()
    assert title(opened).startswith("Client ")
    for figure in sheet(opened).find_elements(By.CSS_SELECTOR, "figure.chart"):
        assert figure.text, figure.get_attribute("data-chart")
    sheet(opened).send_keys(Keys.ESCAPE)
    assert not sheet(opened).is_displayed()
    assert_quiet(opened, page)


def test_the_view_of_a_client_has_its_numbers(opened: Driver, page: str, runs: list[Run]) -> None:
    field = opened.find_element(By.CSS_SELECTOR, ".find input")
    field.send_keys("13", Keys.ENTER)
    assert title(opened) == "Client 13"
    rows = sheet(opened).find_elements(By.CSS_SELECTOR, "tbody tr")
    (row,) = (r.text.removeprefix("● ") for r in rows if "FedAvgM" in r.text)
    run = next(run for run in runs if (run.method, run.seed) == ("fedavgm", 0))
    values = run.accuracies()
    rank = 1 + sum(value > values[13] for value in values.values())
    part = sum(13 in record.get("clients", ()) for record in run.records)
    met = run.cosines().query("client == 13 and layer == 'all'")
    wanted = f"FedAvgM {values[13]:.3f} {rank} {part} {len(met)} of {len(met)}"
    assert " ".join(row.split()) == wanted
    heads = chart(opened, "client-cosines").find_elements(By.CSS_SELECTOR, "text.tick")
    assert "Conv1" in [head.text for head in heads]
    size = run.labels().query("client == 13")["count"].sum()
    assert f"trains on {size} samples" in opened.find_element(By.ID, "client-data").text
    opened.find_element(By.ID, "client-after").click()
    assert title(opened) == "Client 14"
    opened.find_element(By.ID, "client-close").click()
    assert not sheet(opened).is_displayed()
    assert_quiet(opened, page)


def test_the_keyboard_opens_a_client_and_comes_back(opened: Driver, page: str) -> None:
    figure = chart(opened, "clients").find_element(By.CSS_SELECTOR, "svg")
    figure.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ENTER)
    assert title(opened).startswith("Client ")
    ActionChains(opened).send_keys(Keys.ESCAPE).perform()
    assert not sheet(opened).is_displayed()
    assert opened.switch_to.active_element == figure
    assert_quiet(opened, page)


def test_an_unknown_client_is_refused(opened: Driver, page: str) -> None:
    field = opened.find_element(By.CSS_SELECTOR, ".find input")
    field.send_keys("1000", Keys.ENTER)
    assert "No client" in str(field.get_property("validationMessage"))
    assert not sheet(opened).is_displayed()
    assert_quiet(opened, page)


def downloaded(driver: Driver, button: Any, folder: Path) -> list[dict[str, str]]:
    before = set(folder.glob("*.csv"))
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()

    def written(_: Driver) -> set[Path]:
        # Chromium reserves the name with an empty file before it moves the complete one there.
        return {path for path in folder.glob("*.csv") if path.stat().st_size} - before

    (new,) = WebDriverWait(driver, 20).until(written)
    with new.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_every_chart_has_its_numbers_as_a_file(
    opened: Driver, page: str, runs: list[Run], tmp_path: Path
) -> None:
    where = {"behavior": "allow", "downloadPath": str(tmp_path)}
    opened.execute_cdp_cmd("Browser.setDownloadBehavior", where)
    tables = {}
    for figure in opened.find_elements(By.CSS_SELECTOR, "main figure.chart"):
        button = figure.find_element(By.CSS_SELECTOR, "button.csv")
        tables[figure.get_attribute("data-chart")] = downloaded(opened, button, tmp_path)
    assert all(tables.values())
    run = next(run for run in runs if (run.method, run.seed) == ("fedavg", 1))
    found = {
        int(row["client"]): float(row["accuracy"])
        for row in tables["clients"]
        if (row["method"], row["seed"]) == ("FedAvg", "1")
    }
    assert found == run.accuracies()
    opened.find_element(By.CSS_SELECTOR, ".find input").send_keys("13", Keys.ENTER)
    button = chart(opened, "client-accuracy").find_element(By.CSS_SELECTOR, "button.csv")
    rows = downloaded(opened, button, tmp_path)
    last = [float(row["accuracy"]) for row in rows if row["method"] == "FedAvg"][-1]
    first = next(run for run in runs if (run.method, run.seed) == ("fedavg", 0))
    assert last == first.accuracies()[13]


def test_a_live_page_follows_its_runs_and_keeps_its_place(
    driver: Driver, make_run: Callable[..., Path], tmp_path: Path
) -> None:
    for method in ("fedavg", "craft"):
        make_run(f"runs/{method}", method=method, written=20, state="running", clients=20)
    live = LivePage(tmp_path / "runs")
    with serve(live, 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        show(driver, f"http://127.0.0.1:{server.server_address[1]}/", 1280, "light")
        driver.find_element(By.CSS_SELECTOR, '.chip[data-method="fedavg"]').click()
        driver.find_element(By.CSS_SELECTOR, 'input[value="worst10"]').send_keys(Keys.SPACE)
        driver.find_element(By.CSS_SELECTOR, ".find input").send_keys("7", Keys.ENTER)
        driver.execute_script("scrollTo(0, 900)")
        assert "20 of 60 rounds" in page_text(driver)
        shutil.rmtree(tmp_path / "runs/craft")
        make_run("runs/craft", method="craft", written=40, state="running", clients=20)
        live._rest_until = 0.0
        WebDriverWait(driver, 30).until(lambda _: "40 of 60 rounds" in page_text(driver))
        assert driver.execute_script("return scrollY") == 900
        assert title(driver) == "Client 7"
        ends = chart(driver, "client-accuracy").find_elements(By.CSS_SELECTOR, "text.tick")
        assert "40" in [tick.text for tick in ends]
        sheet(driver).send_keys(Keys.ESCAPE)
        chip = driver.find_element(By.CSS_SELECTOR, '.chip[data-method="fedavg"]')
        assert chip.get_attribute("aria-pressed") == "false"
        assert driver.find_element(By.CSS_SELECTOR, 'input[value="worst10"]').is_selected()
        assert "Live" in driver.find_element(By.ID, "live").text
        assert driver.get_log("browser") == []
        server.shutdown()
    WebDriverWait(driver, 30).until(
        lambda _: "Not connected" in driver.find_element(By.ID, "live").text
    )
    driver.get("about:blank")  # it would go on asking, and fill the logs of other tests


def page_text(driver: Driver) -> str:
    return str(driver.execute_script("return document.querySelector('main').textContent"))


def test_printing_shows_everything_on_white(driver: Driver, page: str) -> None:
    show(driver, page, 390, "dark")
    printed = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(printed["data"]) > 50_000
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert background(driver) == "rgb(255, 255, 255)"
    assert not driver.find_element(By.CSS_SELECTOR, ".chips").is_displayed()
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert_quiet(driver, page)

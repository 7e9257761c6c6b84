"""The report in a real browser: Debian's chromium, headless."""

import importlib.util
import shutil
import time
from pathlib import Path

import pytest

from uvax.report import build

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
if BROWSER is None or DRIVER is None:
    pytest.skip("no chromium or chromedriver here: apt-get install chromium chromium-driver", allow_module_level=True)
selenium = pytest.importorskip("selenium", reason="selenium is not installed: pip install selenium")


def _rows():
    place = Path(__file__).parents[1] / "report" / "made_up_rows.py"
    spec = importlib.util.spec_from_file_location("made_up_rows", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.every_row()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return build(_rows(), tmp_path_factory.mktemp("page") / "report.html", title="A report")


@pytest.fixture(scope="module")
def driver():
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # A page that asks the network for anything at all shows up in the log as an error.
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield browser
    browser.quit()


@pytest.fixture
def show(driver, report):
    """Open the page in a window of a size and a colour scheme; returns the browser."""

    def open_page(width: int = 1280, height: int = 900, scheme: str = "light"):
        driver.get("about:blank")
        driver.get_log("browser")
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        driver.get(report.as_uri())
        return driver

    return open_page


def find(driver, selector: str):
    from selenium.webdriver.common.by import By

    return driver.find_element(By.CSS_SELECTOR, selector)


def wait(condition, seconds: float = 30.0):
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "the page did not get there in time"
        time.sleep(0.1)
    return value


def click(driver, selector: str) -> None:
    """Without the scrolling of a real mouse, which smooth scrolling makes a race."""
    driver.execute_script("arguments[0].click()", find(driver, selector))


def choose(driver, selector: str, value: str) -> None:
    from selenium.webdriver.support.select import Select

    options = Select(find(driver, selector))
    next(o for o in options.options if value in (o.get_attribute("value"), o.text)).click()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_the_page_is_drawn_without_errors(show, width, scheme, tmp_path):
    driver = show(width, 900, scheme)
    charts = driver.execute_script("return [...document.querySelectorAll('.plot')].map(p => p.id)")
    assert len(charts) > 8
    for chart in charts:
        driver.execute_script(f"document.getElementById('{chart}').scrollIntoView({{behavior: 'instant'}})")
        wait(
            lambda chart=chart: driver.execute_script(
                f"return document.querySelectorAll('#{chart} .scatterlayer .trace, #{chart} .barlayer .trace').length"
            )
        )
    assert [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    # Tables scroll inside themselves; the page never scrolls sideways.
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    background = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) == (scheme == "dark")
    picture = tmp_path / "page.png"
    driver.save_screenshot(str(picture))
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize("width", [1280, 700, 390])
def test_a_section_that_is_jumped_to_shows_its_title(show, width):
    driver = show(width)
    driver.execute_script("document.documentElement.style.scrollBehavior = 'auto'")
    sections = driver.execute_script("return [...document.querySelectorAll('nav a')].map(a => a.hash.slice(1))")
    assert len(sections) > 5
    for section in sections[1:4]:
        click(driver, f"nav a[href='#{section}']")

        def gap(section=section):
            return driver.execute_script(
                f"return document.querySelector('#{section} h2, h2#{section}').getBoundingClientRect().top"
                " - document.querySelector('nav').getBoundingClientRect().bottom"
            )

        wait(lambda gap=gap: 0 <= gap() < 100, 10.0)


def test_the_explorer_reacts_to_clicks(show):
    driver = show()
    said = lambda: find(driver, "#explorer-said").text  # noqa: E731
    colours = lambda: driver.execute_script(  # noqa: E731
        "return [...document.querySelectorAll('#explorer-grid-0 polygon')].map(p => p.getAttribute('fill'))"
    )
    assert find(driver, "#explorer-name-0").text.startswith("UVU: uncertainty")
    assert find(driver, "#explorer-name-1").text.startswith("BDQNP(35): uncertainty")
    assert len(colours()) == 3 * 3 * 4
    before = said()
    driver.execute_script(
        'document.querySelector(\'#explorer-grid-1 .cell[data-x="3"][data-y="1"] polygon[data-d="2"]\')'
        ".dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    assert said() != before
    assert said().startswith("At (3, 1) facing west")
    uncertain = colours()
    choose(driver, "#explorer-show", "value")
    assert colours() != uncertain
    assert find(driver, "#explorer-name-0").text.startswith("UVU: value")
    # An impossible task: no door is its target.
    boards = driver.execute_script(
        "return JSON.parse(document.getElementById('explorer-data').textContent)['5'].boards"
    )
    absent = ({*range(6)} - {door["colour"] for door in boards[0]["doors"]}).pop()
    click(driver, f"#explorer-tasks button[data-task='{absent}']")
    assert "(impossible)" in find(driver, "#explorer-name-0").text
    kept = driver.execute_script(
        "return [...document.querySelectorAll('#explorer-tasks td:nth-child(5)')].map(c => c.textContent)"
    )
    assert sorted(kept) == ["kept"] * 2 + ["rejected"] * 4
    choose(driver, "#explorer-size", "6")
    assert len(colours()) == 4 * 4 * 4
    choose(driver, "#explorer-left", "dqn")
    assert "random" in find(driver, "#explorer-tasks").text
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_everything_is_reached_by_keyboard(show):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    driver = show()
    reached = set()
    for _ in range(400):
        ActionChains(driver).send_keys(Keys.TAB).perform()
        name = driver.execute_script(
            "const e = document.activeElement; return e.id || e.getAttribute('href') || e.dataset.file || "
            "e.getAttribute('aria-label') || e.tagName"
        )
        if name == "BODY" and reached:
            break
        reached.add(name)
    assert {"#main", "theme", "#explorer", "explorer-size", "explorer-show", "rows.csv"} <= reached
    grid = find(driver, "#explorer-grid-0 svg")
    driver.execute_script("arguments[0].focus()", grid)
    ActionChains(driver).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN, " ").perform()
    assert find(driver, "#explorer-said").text.startswith("At (2, 3) facing east")
    # The grid keeps the focus although it is drawn anew.
    assert driver.execute_script("return document.activeElement.tagName") == "svg"


def surface(driver) -> list[str]:
    """The corners of the faces of the surface, and their colours."""
    return driver.execute_script(
        "return [...document.querySelectorAll('#chain_explorer .face')]"
        ".map(f => f.getAttribute('points') + f.getAttribute('fill'))"
    )


def slide(driver, name: str, value: int) -> None:
    driver.execute_script(
        f"const s = document.getElementById('chain_explorer-{name}'); s.value = {value};"
        "s.dispatchEvent(new Event('input', {bubbles: true}))"
    )


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "dark")])
def test_surfaces_are_turned_and_read(show, width, scheme):
    driver = show(width, 900, scheme)
    driver.execute_script("document.getElementById('chain_explorer').scrollIntoView({behavior: 'instant'})")
    said = lambda: find(driver, "#chain_explorer .said").text  # noqa: E731
    assert said() == "At s1, z = 0: UVU, 128 heads 0.332, closed form 0.350 (ratio 0.95)."
    assert len(surface(driver)) == 9 * 10
    slide(driver, "x", 4)
    slide(driver, "y", 5)
    assert said().startswith("At s5, z = 0.5: UVU, 128 heads 0.08")
    before = surface(driver)
    slide(driver, "turn", 200)
    turned = surface(driver)
    assert sorted(turned) != sorted(before)
    slide(driver, "tilt", 80)
    assert sorted(surface(driver)) != sorted(turned)
    # Layers of another scale have no reference beside them.
    choose(driver, "#chain_explorer-method", "RND errors")
    assert said().startswith("At s5, z = 0.5: RND errors")
    assert "closed form" not in said()
    assert driver.execute_script("return document.querySelectorAll('#chain_explorer .beside').length") == 0
    choose(driver, "#chain_explorer-method", "ensemble of 128")
    assert driver.execute_script("return document.querySelectorAll('#chain_explorer .beside').length") == 2
    # A click on a face goes there.
    driver.execute_script(
        'const f = document.querySelector(\'#chain_explorer .face[data-i="2"][data-j="3"]\');'
        "for (const kind of ['pointerdown', 'pointerup']) f.dispatchEvent(new PointerEvent(kind, {bubbles: true}))"
    )
    assert said().startswith("At s3, z = 0.3: ensemble of 128")
    ink = driver.execute_script("return getComputedStyle(document.querySelector('#chain_explorer text')).fill")
    assert (sum(map(int, ink[4:-1].split(","))) > 600) == (scheme == "dark")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    assert [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def test_surfaces_by_keyboard(show):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    driver = show()
    said = lambda: find(driver, "#chain_explorer .said").text  # noqa: E731
    driver.execute_script("document.getElementById('chain_explorer-method').focus()")
    reached = ["chain_explorer-method"]
    for _ in range(5):
        ActionChains(driver).send_keys(Keys.TAB).perform()
        reached.append(driver.execute_script("return document.activeElement.id || document.activeElement.tagName"))
    assert reached[1:] == [*(f"chain_explorer-{name}" for name in ("x", "y", "turn", "tilt")), "svg"]
    ActionChains(driver).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_UP).perform()
    assert said().startswith("At s3, z = 0.1")
    before = surface(driver)
    ActionChains(driver).key_down(Keys.SHIFT).send_keys(Keys.ARROW_LEFT).key_up(Keys.SHIFT).perform()
    assert surface(driver) != before
    assert said().startswith("At s3, z = 0.1")
    ActionChains(driver).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
    ActionChains(driver).send_keys(Keys.ARROW_RIGHT).perform()  # the slider that tilts
    assert driver.execute_script("return document.getElementById('chain_explorer-tilt').value") == "28"


def test_the_theme_can_be_chosen_and_charts_follow(show):
    driver = show(scheme="light")
    driver.execute_script("document.getElementById('table1-rejection').scrollIntoView({behavior: 'instant'})")
    wait(lambda: driver.execute_script("return document.querySelectorAll('#table1-rejection .xtick text').length"))
    ink = "return getComputedStyle(document.querySelector('#table1-rejection .xtick text')).fill"
    light = driver.execute_script(ink)
    click(driver, "#theme")
    assert find(driver, "#theme").text == "Colours: light"
    click(driver, "#theme")
    assert find(driver, "#theme").text == "Colours: dark"
    wait(lambda: driver.execute_script(ink) != light)
    click(driver, "#theme")
    assert find(driver, "#theme").text == "Colours: automatic"


def test_a_chart_shows_the_group_that_is_chosen(show):
    driver = show()
    driver.execute_script("document.getElementById('table1-learning').scrollIntoView({behavior: 'instant'})")
    shown = "return document.getElementById('table1-learning').data?.[1]?.y?.[0]"
    before = wait(lambda: driver.execute_script(shown))
    choose(driver, "select[data-chart='table1-learning']", "size 6")
    wait(lambda: driver.execute_script(shown) != before)


def test_data_are_handed_over(show, tmp_path):
    driver = show()
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    driver.execute_script("document.querySelector('[data-file=\"rows.csv\"]').click()")
    file = tmp_path / "rows.csv"
    wait(file.exists)
    wait(lambda: file.read_text().startswith("experiment,trial_id,seed"))

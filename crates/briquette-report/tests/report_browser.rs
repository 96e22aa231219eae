//! The page of a run in a browser, as a reader uses it: it is shown without a complaint, sorts,
//! filters, fits a phone and can be read in the dark.
//!
//! Needs Chromium: the package `chromium` of Debian, or another build of it on the path. Without
//! one these tests fail, unless `BRIQUETTE_NO_BROWSER` is set.

mod browser;
mod made_up;

use std::path::{Path, PathBuf};

use browser::{Browser, Look};
use serde_json::{Value, json};

const DESKTOP: Look = Look { width: 1280, height: 900, dark: false };
const PHONE: Look = Look { width: 390, height: 844, dark: false };

fn page(dir: &Path) -> PathBuf {
    made_up::write(&dir.join("results.jsonl"), &made_up::run());
    briquette_report::html::write(dir, None, None).unwrap().page
}

/// The page of a made-up run, open in a browser; `None` where a browser is done without on purpose.
fn open(look: Look) -> Option<(tempfile::TempDir, Browser)> {
    if std::env::var_os("BRIQUETTE_NO_BROWSER").is_some() {
        eprintln!("BRIQUETTE_NO_BROWSER is set: nothing is tested in a browser");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = page(dir.path());
    let mut browser = Browser::start(&dir.path().join("profile"));
    browser.look(look);
    browser.open(&file);
    Some((dir, browser))
}

/// Texts of a column of the summary, from the top, of the rows that are shown.
fn column(browser: &mut Browser, name: &str) -> Vec<Value> {
    let script = format!(
        "(() => {{
            const table = {head}.closest('table');
            const column = [...table.tHead.rows[0].cells].findIndex((head) => head.textContent.includes({name}));
            return [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => {{
                const cell = row.cells[column];
                return cell.dataset.v === undefined ? cell.textContent.trim() : Number(cell.dataset.v);
            }});
        }})()",
        head = head(name),
        name = json!(name)
    );
    browser.value(&script).as_array().unwrap().clone()
}

fn head(name: &str) -> String {
    let name = json!(name);
    format!(
        "[...document.querySelectorAll('table.numbers thead th')].find((head) => head.textContent.includes({name}))"
    )
}

#[test]
fn the_page_is_shown_without_a_complaint_and_asks_for_nothing_else() {
    let Some((_dir, mut browser)) = open(DESKTOP) else { return };
    let title = "ember-7m: fidelity, key-value, needle, pg19, 2026-11-21";
    assert_eq!(browser.value("document.querySelector('h1').textContent"), title);
    assert_eq!(browser.value("document.title"), title);
    assert_eq!(browser.value("document.querySelectorAll('main > section').length"), 9);
    // Every chart has a size and something drawn on it.
    let empty = browser.value(
        "[...document.querySelectorAll('figure svg')].filter((svg) => {
            for (let up = svg; up; up = up.parentElement) if (up.tagName === 'DETAILS' && !up.open) return false;
            const { width, height } = svg.getBoundingClientRect();
            return width < 200 || height < 100 || !svg.querySelector('polyline, rect');
        }).length",
    );
    assert_eq!(empty, 0);
    // What a model said is text.
    assert_eq!(browser.value("document.images.length"), 0);
    let said = format!(
        "[...document.querySelectorAll('.said')].filter((cell) => cell.textContent === {}).length > 0",
        json!(made_up::HOSTILE)
    );
    assert_eq!(browser.value(&said), true);
    // Opening what is folded shows no more than the page has.
    browser.value("document.querySelectorAll('details').forEach((one) => (one.open = true))");
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:?}");
    browser.value("console.warn('heard')");
    assert_eq!(browser.complaints().len(), 1);
    let requests = browser.requests();
    assert!(requests.len() == 1 && requests[0].starts_with("file:"), "{requests:?}");
}

#[test]
fn a_header_sorts_by_mouse_and_by_keyboard() {
    let Some((_dir, mut browser)) = open(DESKTOP) else { return };
    let name = "held, of full";
    let before = column(&mut browser, name);
    browser.value(&format!("{}.querySelector('button').click()", head(name)));
    let sorted = |values: &[Value], falling: bool| {
        let values: Vec<f64> = values.iter().map(|value| value.as_f64().unwrap()).collect();
        values.windows(2).all(|pair| if falling { pair[0] >= pair[1] } else { pair[0] <= pair[1] })
    };
    let falling = column(&mut browser, name);
    assert!(!sorted(&before, true) && sorted(&falling, true), "{before:?}, {falling:?}");
    assert_eq!(falling[0], 1.0);
    assert_eq!(browser.value(&format!("{}.ariaSort", head(name))), "descending");

    browser.value(&format!("{}.querySelector('button').focus()", head(name)));
    browser.press_enter();
    let rising = column(&mut browser, name);
    assert!(sorted(&rising, false) && rising.len() == before.len(), "{rising:?}");
    assert_eq!(browser.value(&format!("{}.ariaSort", head(name))), "ascending");

    // Text, then; and the mark is on one column.
    browser.value(&format!("{}.querySelector('button').click()", head("Policy")));
    let policies = column(&mut browser, "Policy");
    assert_eq!((&policies[0], &policies[16]), (&json!("adakv"), &json!("streaming-llm")));
    let marked = "[...document.querySelectorAll('#table th[aria-sort]')].filter((th) => th.ariaSort !== 'none').length";
    assert_eq!(browser.value(marked), 1);

    // What was not measured is last, whichever way: the full cache has no overlap.
    for _ in 0..2 {
        browser.value(&format!("{}.querySelector('button').click()", head("overlap")));
        assert_eq!(column(&mut browser, "overlap").last().unwrap(), "–");
    }
}

#[test]
fn filters_hide_rows_columns_and_charts() {
    let Some((_dir, mut browser)) = open(DESKTOP) else { return };
    let all = column(&mut browser, "Policy").len();
    assert_eq!(all, 17);
    browser.value("document.querySelector('[name=policy]').focus()");
    browser.write("SnapKV");
    assert_eq!(column(&mut browser, "Policy"), vec![json!("snapkv:kernel=15"); 3]);
    assert_eq!(browser.value("document.getElementById('count').textContent"), "3 of 17 rows");
    let lines = "[...document.querySelectorAll('#accuracy figure [data-policy]')]
        .filter((line) => getComputedStyle(line).display !== 'none')
        .every((line) => line.dataset.policy.includes('snapkv'))";
    assert_eq!(browser.value(lines), true);

    browser.value("document.querySelector('#filter [type=reset]').click()");
    browser.value("new Promise((done) => setTimeout(done, 50))");
    assert_eq!(column(&mut browser, "Policy").len(), all);

    let click = |name: &str, value: &str| {
        format!("document.querySelector('[name={name}][value=\"{value}\"]').click()")
    };
    browser.value(&click("budget", "64"));
    assert_eq!(column(&mut browser, "Policy").len(), all - 5);
    browser.value(&click("method", "h2o"));
    assert_eq!(column(&mut browser, "Policy").len(), all - 5 - 2);
    let heads = "[...document.querySelectorAll('table.numbers thead th')].filter((head) => !head.hidden).length";
    let before = browser.value(heads).as_u64().unwrap();
    browser.value(&click("task", "needle"));
    // Query-aware and query-agnostic: scores, and differences twice, of all lengths and each.
    assert_eq!(browser.value(heads).as_u64().unwrap(), before - 2 * (1 + 2 * 4));
    let needles = "[...document.querySelectorAll('main [data-task=needle]')]
        .filter((part) => part.getClientRects().length > 0).length";
    assert_eq!(browser.value(needles), 0);

    // Answers, by text and by score.
    browser.value("document.querySelector('#filter [type=reset]').click()");
    browser.value("new Promise((done) => setTimeout(done, 50))");
    browser.value(
        "(() => {
            const score = document.querySelector('#sample-filter [name=score]');
            score.value = 'right';
            score.dispatchEvent(new Event('input', { bubbles: true }));
        })()",
    );
    let scores =
        "[...document.querySelectorAll('#sample-table tbody tr')].filter((row) => !row.hidden)
        .map((row) => Number(row.dataset.score))";
    let right = browser.value(scores).as_array().unwrap().clone();
    assert!(!right.is_empty() && right.iter().all(|score| *score == 1.0), "{right:?}");
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
}

#[test]
fn another_policy_can_be_laid_over_the_text() {
    let Some((_dir, mut browser)) = open(DESKTOP) else { return };
    let levels = "[...document.querySelectorAll('.panel .tokens span')].slice(0, 240).map((token) => token.className)";
    let before = browser.value(levels);
    browser.value(
        "(() => {
            const select = document.querySelector('.panel select');
            select.value = '0';
            select.dispatchEvent(new Event('change', { bubbles: true }));
        })()",
    );
    // The first is the full cache: every head holds every token.
    let full = browser.value(levels);
    assert!(full.as_array().unwrap().iter().all(|level| level == "k10"), "{full}");
    assert_ne!(before, full);
    let said = browser.value("document.querySelector('.panel output').textContent");
    assert_eq!(said, "100.0 % of all tokens in all heads held");
}

#[test]
fn a_phone_shows_it_without_scrolling_sideways() {
    let Some((_dir, mut browser)) = open(PHONE) else { return };
    let wide = "document.scrollingElement.scrollWidth - innerWidth";
    assert_eq!(browser.value("innerWidth"), 390);
    assert!(browser.value(wide).as_i64().unwrap() <= 0);
    browser.value("document.querySelectorAll('details').forEach((one) => (one.open = true))");
    assert!(browser.value(wide).as_i64().unwrap() <= 0, "with everything open");
    // The table scrolls in its box and says so, and charts are as wide as the page.
    let scrolls = "(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth)(document.getElementById('table').closest('.box'))";
    assert_eq!(browser.value(scrolls), true);
    let said = format!("({HINTS}).every(([said, wide]) => said === wide)");
    assert_eq!(browser.value(&said), true, "{}", browser.value(HINTS));
    let narrow = "Math.min(...[...document.querySelectorAll('figure svg')].map((svg) => svg.getBoundingClientRect().width))";
    assert!(browser.value(narrow).as_f64().unwrap() > 340.0);
}

/// Of each table, whether a hint above it says that it scrolls, and whether it does.
const HINTS: &str = "[...document.querySelectorAll('.box')]
    .filter((box) => box.previousElementSibling?.classList.contains('hint') && box.getClientRects().length > 0)
    .map((box) => [box.previousElementSibling.getClientRects().length > 0, box.scrollWidth > box.clientWidth])";

#[test]
fn a_screen_shows_whole_tables_of_numbers() {
    let Some((_dir, mut browser)) = open(DESKTOP) else { return };
    browser.value("document.querySelectorAll('details').forEach((one) => (one.open = true))");
    let wide =
        "[...document.querySelectorAll('table.numbers')].map((table) => table.closest('.box'))
        .filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.ariaLabel)";
    for width in [1280, 1920] {
        browser.look(Look { width, ..DESKTOP });
        assert_eq!(browser.value(wide), json!([]), "{width} pixels");
        assert!(
            browser.value("document.querySelectorAll('table.numbers').length").as_u64().unwrap()
                >= 5
        );
    }
}

#[test]
fn a_phone_without_scripts_is_told_of_columns_too() {
    let Some((dir, mut browser)) = open(PHONE) else { return };
    browser.call("Emulation.setScriptExecutionDisabled", json!({ "value": true }));
    browser.open(&dir.path().join("report.html"));
    assert_eq!(browser.value("document.documentElement.classList.contains('js')"), false);
    let said = "document.getElementById('table').closest('.box').previousElementSibling.getClientRects().length";
    assert_eq!(browser.value(said), 1);
}

/// Text whose contrast with what is behind it is below 4.5 (WCAG 2.1, 1.4.3), with the contrast.
const FAINT: &str = r"
(() => {
  const parse = (text) => {
    const parts = text.slice(text.indexOf('(') + 1, -1).split(/[ ,/]+/);
    if (text.startsWith('color(srgb')) return [...parts.slice(1, 4).map(Number), Number(parts[4] ?? 1)];
    if (!text.startsWith('rgb')) throw new Error('a colour of another kind: ' + text);
    return [...parts.slice(0, 3).map((part) => part / 255), Number(parts[3] ?? 1)];
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  const light = (color) => {
    const [r, g, b] = color.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  // What is behind a text: its own background and those around it, and the two sides of a bar.
  const behind = (element) => {
    let layers = [];
    for (let up = element; up; up = up.parentElement) {
      const style = getComputedStyle(up);
      layers.push(parse(style.backgroundColor));
      if (layers.at(-1)[3] === 1) break;
    }
    const solid = layers.reverse().reduce((below, layer) => over(layer, below), [1, 1, 1, 1]);
    const image = getComputedStyle(element).backgroundImage.match(/rgba?\([^)]*\)/);
    return image ? [solid, parse(image[0])] : [solid];
  };
  const faint = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let checked = 0;
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || ['SCRIPT', 'OPTION', 'title'].includes(element.tagName)) continue;
    if (element.getClientRects().length === 0 || element.closest('.hide')) continue;
    const svg = element.closest('svg');
    const style = getComputedStyle(element);
    let color = svg ? style.fill : style.color;
    if (color === 'currentcolor') color = style.color;
    const tile = svg && element.parentElement !== svg && element.parentElement.querySelector(':scope > rect');
    const backs = tile ? [parse(getComputedStyle(tile).fill)] : behind(svg ?? element);
    for (const back of backs) {
      const ratio = contrast(over(parse(color), back), back);
      if (ratio < 4.5) faint.push([element.textContent.trim().slice(0, 40), element.tagName, ratio]);
    }
    checked += 1;
  }
  return [checked, faint];
})()";

#[test]
fn it_can_be_read_by_day_and_by_night() {
    let Some((_dir, mut browser)) = open(DESKTOP) else { return };
    let background = "getComputedStyle(document.body).backgroundColor";
    browser.value("document.querySelectorAll('details').forEach((one) => (one.open = true))");
    let mut papers = Vec::new();
    for dark in [false, true] {
        browser.look(Look { dark, ..DESKTOP });
        papers.push(browser.value(background));
        let found = browser.value(FAINT);
        assert!(found[0].as_u64().unwrap() > 1000, "texts were looked at: {}", found[0]);
        assert_eq!(found[1], json!([]), "dark: {dark}");
    }
    // Grey on white would be found.
    browser.look(DESKTOP);
    browser.value("document.querySelector('h1').style.color = '#888'");
    assert_eq!(browser.value(FAINT)[1].as_array().unwrap().len(), 1);
    assert_eq!(papers[0], "rgb(255, 255, 255)");
    assert_ne!(papers[0], papers[1]);
}

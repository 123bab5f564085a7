//! The looks of the page: on a phone, with faults and shadows, and where pages shall be dark.

use anyhow::{Context, Result, ensure};
use pointsman_lifecycle::report::{ReconcilerReport, TransactionOutcome};
use pointsman_tests::PATIENCE;
use pointsman_tests::browser::{ColorScheme, Used, used};
use pointsman_tests::client::streamed_chat;
use pointsman_tests::load::LoadGenerator;
use pointsman_tests::serving::{Serving, component};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::{LOOK, UNTIL, cell, text};

/// Has a shadow that works and one that faults, and serves until it has.
async fn shadowed(serving: &Serving) -> Result<()> {
    let faulting = "outrage = 'trap'\ncalls = ['route']\ngood-calls = 100\n";
    for (name, made, settings) in [
        ("calm-shadow", "round-robin", ""),
        ("faulty-shadow", "test/hostile", faulting),
    ] {
        let sidecar = format!("mode = 'shadow'\n[settings]\n{settings}");
        serving.drop_in(&format!("{name}.toml"), sidecar.as_bytes())?;
        serving.drop_in(&format!("{name}.wasm"), &component(made)?)?;
    }
    let shadows = |report: &ReconcilerReport| {
        let made = report.transactions.iter();
        let made = made.filter(|made| matches!(made.outcome, TransactionOutcome::Shadow(_)));
        made.count() == 2
    };
    serving.report_until(shadows).await?;
    let mut body = streamed_chat("Hello");
    body["max_tokens"] = json!(1);
    let load = LoadGenerator::start(serving.client, 8, move |_| body.clone());
    let faulted = timeout(PATIENCE, async {
        loop {
            let listed = serving.client.get("/admin/policies").await?.json()?;
            let shadows = listed["shadows"].as_array().context("no shadows")?;
            if shadows
                .iter()
                .any(|shadow| shadow["fault_last"].is_object())
            {
                return anyhow::Ok(());
            }
            sleep(LOOK).await;
        }
    });
    faulted.await.context("it never faults")??;
    load.stop().await?;
    serving.idle().await?;
    Ok(())
}

/// Notes faults of the layout in `data-broken`: words that are broken, and text that is wider than its place.
const LAYOUT: &str = r"
const visible = (it) => it.checkVisibility() && it.getClientRects().length > 0;
const broken = () => {
  const found = [], range = document.createRange();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    if (!visible(node.parentElement)) continue;
    for (const word of node.data.matchAll(/[\p{L}\p{N}_.,%]+/gu)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map((it) => Math.round(it.top)));
      if (lines.size > 1) found.push('broken: ' + word[0]);
    }
  }
  for (const it of document.querySelectorAll('main *, header, .notice'))
    if (visible(it) && getComputedStyle(it).overflowX === 'visible' && it.scrollWidth > it.clientWidth + 1
      && getComputedStyle(it).display !== 'inline') found.push('too wide: ' + it.outerHTML.slice(0, 120));
  if (document.documentElement.scrollWidth > innerWidth) found.push('the page scrolls sideways');
  return found;
};
until(() => document.body.dataset.at && document.querySelector('[data-ended] summary'), (summary) => {
  for (const it of [summary, ...document.querySelectorAll('[data-fault] summary, [data-policy] summary')]) it.click();
  until(() => document.querySelector('#requests ol li'), () => {
    document.body.dataset.width = innerWidth;
    document.body.dataset.broken = broken().join('; ');
  });
});";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_and_shadows_are_shown_and_nothing_breaks_on_a_phone() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    shadowed(&serving).await?;
    for width in [390, 1280] {
        let script = format!("{UNTIL}{LAYOUT}");
        let page = Used {
            path: "/monitor",
            width,
            scheme: ColorScheme::Light,
            script: &script,
        };
        let dom = used(serving.server.addr(), page).await?;
        ensure!(dom.contains(&format!("data-width=\"{width}\"")), "{dom}");
        ensure!(dom.contains("data-broken=\"\""), "{dom}");
        // The decision about a request, step by step.
        let (_, steps) = dom.split_once("<ol>").context("no steps")?;
        ensure!(steps.contains(">admission: budget says admit<"), "{steps}");
        // Beside the shadow's time stands that of the policy in force.
        let calm = "data-shadow=\"calm-shadow\"";
        ensure!(cell(&dom, calm, "in-force")? == "memory-aware", "{dom}");
        for time in ["latency", "latency-in-force"] {
            let shown = cell(&dom, calm, time)?;
            ensure!(shown.contains("s / "), "{time}: {shown}");
        }
        // A fault is a line, and its trace is behind a click.
        let fault = "data-fault=\"faulty-shadow, a shadow\"";
        let (_, fault) = dom.split_once(fault).context("no fault")?;
        let (fault, _) = fault.split_once("</tr>").context("a row does not end")?;
        ensure!(
            text(fault, "<summary")?.contains("as it was told"),
            "{fault}"
        );
        ensure!(text(fault, "<pre")?.contains("route"), "{fault}");
    }
    serving.server.stop().await?;
    Ok(())
}

/// Notes the colour behind the page in `data-behind`.
const BEHIND: &str = "until(() => document.body.dataset.at, () => {
  document.body.dataset.behind = getComputedStyle(document.body).backgroundColor;
});";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_is_dark_for_those_who_want_dark_pages() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    let script = format!("{UNTIL}{BEHIND}");
    for (scheme, behind) in [
        (ColorScheme::Light, "rgb(244, 245, 247)"),
        (ColorScheme::Dark, "rgb(17, 20, 27)"),
    ] {
        let page = Used {
            path: "/monitor",
            width: 1280,
            scheme,
            script: &script,
        };
        let dom = used(serving.server.addr(), page).await?;
        ensure!(dom.contains(&format!("data-behind=\"{behind}\"")), "{dom}");
    }
    serving.server.stop().await?;
    Ok(())
}

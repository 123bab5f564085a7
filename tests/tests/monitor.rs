//! The monitor page as a browser shows it: headless Chromium, against a server with traffic.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pointsman_tests::client::streamed_chat;
use pointsman_tests::load::LoadGenerator;
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

/// Longest time that a browser may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time between two looks at the numbers.
const LOOK: Duration = Duration::from_millis(50);

/// The page's elements after its scripts have run for a few polls.
async fn shown(url: &str) -> Result<String> {
    let profile = tempfile::tempdir()?;
    let mut browser = Command::new("chromium");
    browser
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ])
        .args([
            "--disable-background-networking",
            "--no-first-run",
            "--disable-extensions",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(["--virtual-time-budget=4000", "--dump-dom"])
        .arg(url)
        .kill_on_drop(true);
    let output = timeout(PATIENCE, browser.output()).await;
    let output = output.context("the browser hangs")?;
    let output = output.context("no chromium: run `cargo xtask test`, which installs it")?;
    let dom = String::from_utf8(output.stdout)?;
    let complained = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success() && dom.contains("</html>"),
        "{dom}\n{complained}"
    );
    Ok(dom)
}

/// Waits until the numbers show no request in hand. The server repeats an answer for almost a
/// second, so the first one after the last request may be too old.
async fn settled(serving: &Serving) -> Result<Value> {
    let asked = timeout(PATIENCE, async {
        loop {
            let data = serving.client.get("/monitor/data").await?.json()?;
            if data["load"]["live"] == 0 && data["load"]["slots_used"] == 0 {
                return anyhow::Ok(data);
            }
            sleep(LOOK).await;
        }
    });
    asked.await.context("the numbers never settle")?
}

/// The text of the first element whose tag contains `mark`, without tags inside it.
fn text(dom: &str, mark: &str) -> Result<String> {
    let (_, from) = dom
        .split_once(mark)
        .with_context(|| format!("no {mark} in {dom}"))?;
    let (_, from) = from.split_once('>').context("a tag does not end")?;
    let (text, _) = from.split_once('<').context("an element does not end")?;
    Ok(text.to_owned())
}

/// The same within the row that contains `row`.
fn cell(dom: &str, row: &str, name: &str) -> Result<String> {
    let (_, from) = dom
        .split_once(row)
        .with_context(|| format!("no {row} in {dom}"))?;
    let (row, _) = from.split_once("</tr>").context("a row does not end")?;
    text(row, &format!("data-f=\"{name}\""))
}

/// A number as the page writes it.
fn grouped(number: &Value) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn sum(counts: &Value) -> u64 {
    let counts = counts.as_object().into_iter().flatten();
    counts.filter_map(|(_, count)| count.as_u64()).sum()
}

/// Checks that the page shows the numbers of the host, its executors and models.
fn check_host(dom: &str, data: &Value) -> Result<()> {
    let load = &data["load"];
    for key in [
        "slots_used",
        "slots_total",
        "live",
        "queued",
        "parked",
        "blocks_used",
        "executors_up",
    ] {
        ensure!(
            text(dom, &format!("id=\"{key}\""))? == grouped(&load[key]),
            "{key}: {dom}"
        );
    }
    ensure!(text(dom, "id=\"queue_max\"")? == grouped(&data["queue_max"]));
    ensure!(text(dom, "id=\"blocks_total\"")? == grouped(&data["devices"][0]["blocks_total"]));
    let executor = &data["executors"][0];
    let tokens = grouped(&executor["engine"]["generated_tokens"]);
    ensure!(
        text(dom, "id=\"generated_tokens\"")? == tokens,
        "{tokens}: {dom}"
    );
    let row = "data-executor=\"cpu0/demo\"";
    ensure!(cell(dom, row, "placed")? == grouped(&executor["placed_total"]));
    ensure!(cell(dom, row, "slots")? == "0 / 8");
    ensure!(cell(dom, row, "models")? == "demo");
    ensure!(cell(dom, row, "served")? == grouped(&data["activity"][0]["served"]));
    for (key, number) in [
        ("finished", &data["totals"]["finished"]),
        ("arrived", &data["totals"]["arrived"]),
        ("sessions", &data["sessions"]["tracked"]),
    ] {
        ensure!(
            text(dom, &format!("id=\"{key}\""))? == grouped(number),
            "{key}"
        );
    }
    let model = &data["models"][0];
    for (name, number) in [("requests", "requests"), ("output", "output_tokens")] {
        let shown = cell(dom, "data-model=\"demo\"", name)?;
        ensure!(shown == grouped(&model[number]), "{name}: {shown}");
    }
    // A bar for each minute with traffic.
    for plot in ["finished", "queued", "running", "tokens", "wait"] {
        ensure!(
            dom.contains(&format!("id=\"{plot}-bars\" d=\"M")),
            "{plot}: {dom}"
        );
    }
    Ok(())
}

/// Checks that the page shows the settings that a policy describes, with their values in force.
fn check_settings(dom: &str, policy: &Value) -> Result<()> {
    let takes = policy["takes"].as_array().context("no settings")?;
    ensure!(!takes.is_empty(), "{policy:#}");
    for setting in takes {
        let key = setting["key"].as_str().context("no key")?;
        let value = Some(&setting["default"]).filter(|value| !value.is_null());
        let value = value.map_or("not set".to_owned(), Value::to_string);
        let shown = format!("{key} = {value}");
        ensure!(dom.contains(&format!(">{shown}<")), "{shown}: {dom}");
        let about = setting["about"].as_str().context("no meaning")?;
        ensure!(
            !about.is_empty() && setting["values"].is_string(),
            "{setting}"
        );
    }
    Ok(())
}

/// Checks that the page shows the policies, and who decides.
fn check_policies(dom: &str, data: &Value) -> Result<()> {
    for policy in data["policies"]["policies"]
        .as_array()
        .context("no policies")?
    {
        let row = format!("data-policy={}", policy["name"]);
        let running = &policy["running"];
        ensure!(
            cell(dom, &row, "generation")? == grouped(&running["generation"]),
            "{row}"
        );
        let answers = grouped(&json!(sum(&running["answers"])));
        ensure!(cell(dom, &row, "answers")? == answers, "{row}: {answers}");
        check_settings(dom, policy)?;
    }
    for (hook, holder) in data["policies"]["hooks"].as_object().context("no hooks")? {
        let (_, from) = dom
            .split_once(&format!("data-hook=\"{hook}\""))
            .context("no hook")?;
        let holder = holder["policy"].as_str().context("nobody holds it")?;
        ensure!(text(from, "<strong")? == holder, "{hook}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_under_traffic_and_after_it_the_numbers_of_monitor_data() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    let url = format!("http://{}/monitor", serving.server.addr());
    let load = LoadGenerator::start(serving.client, 12, |_| {
        let mut body = streamed_chat("Hello");
        body["max_tokens"] = json!(64);
        body["ignore_eos"] = json!(true);
        body
    });
    serving
        .load_until(|load| load.slots_used == 8 && load.queued > 0)
        .await?;
    let dom = shown(&url).await?;
    ensure!(text(&dom, "id=\"phase\"")? == "serving", "{dom}");
    let generated = text(&dom, "id=\"generated_tokens\"")?.replace(',', "");
    ensure!(generated.parse::<u64>()? > 0, "{generated}");
    ensure!(!dom.contains("class=\"gone\""), "{dom}");
    let waiting = cell(&dom, "data-request=", "why")?;
    ensure!(!waiting.is_empty() && cell(&dom, "data-request=", "tenant")? == "default");
    load.stop().await?;
    serving.idle().await?;
    let data = settled(&serving).await?;
    let dom = shown(&url).await?;
    check_host(&dom, &data)?;
    check_policies(&dom, &data)?;
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test]
async fn many_viewers_cost_the_driver_one_question() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    let mut viewers = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let client = serving.client;
        viewers.spawn(async move { client.get("/monitor/data").await });
    }
    let mut asked = BTreeSet::new();
    while let Some(answer) = viewers.join_next().await {
        asked.insert(answer??.json()?["at_micros"].as_u64().context("no time")?);
    }
    // On a busy machine several seconds may have passed, but not one for each poll.
    ensure!(asked.len() < 32, "{asked:?}");
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_page_loads_nothing_from_elsewhere() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    let page = serving.client.get("/monitor").await?;
    let policy = page.header("content-security-policy");
    ensure!(
        policy.contains("default-src 'none'") && policy.contains("connect-src 'self'"),
        "{policy}"
    );
    let text = String::from_utf8(page.body)?;
    for elsewhere in ["http://", "https://", "src=", "@import", "innerHTML"] {
        ensure!(!text.contains(elsewhere), "{elsewhere}");
    }
    serving.server.stop().await?;
    Ok(())
}

/// Serves `page` and closes every other connection, as if the server had died.
async fn haunt(listener: TcpListener, page: Vec<u8>) -> Result<()> {
    loop {
        let (mut socket, _) = listener.accept().await?;
        let mut head = [0; 4096];
        let read = socket.read(&mut head).await?;
        if head[..read].starts_with(b"GET /monitor ") {
            let begin = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\
                 content-length: {}\r\n\r\n",
                page.len()
            );
            socket.write_all(begin.as_bytes()).await?;
            socket.write_all(&page).await?;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_whose_server_is_gone_says_so() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    let page = serving.client.get("/monitor").await?.body;
    serving.server.stop().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/monitor", listener.local_addr()?);
    let ghost = tokio::spawn(haunt(listener, page));
    let dom = shown(&url).await?;
    ghost.abort();
    ensure!(text(&dom, "id=\"phase\"")? == "gone", "{dom}");
    let said = text(&dom, "id=\"gone-text\"")?;
    ensure!(said.contains("has not answered"), "{said}");
    Ok(())
}

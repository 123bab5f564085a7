//! The monitor page as a browser shows it: headless Chromium, against a server with traffic.

mod lasting;
mod looks;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pointsman_config::TenantConfig;
use pointsman_driver::quota::TenantLimits;
use pointsman_lifecycle::report::ReconcilerReport;
use pointsman_notation::{Secret, Time};
use pointsman_tests::PATIENCE;
use pointsman_tests::browser::{ColorScheme, Used, shown, used};
use pointsman_tests::client::streamed_chat;
use pointsman_tests::load::LoadGenerator;
use pointsman_tests::serving::{Serving, holds};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

/// Time between two looks at the numbers.
const LOOK: Duration = Duration::from_millis(50);

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

/// A measured time as the page writes it.
fn measured(micros: &Value) -> String {
    let time = Time::from_micros(micros.as_u64().unwrap_or_default());
    format!("{time:.1}")
}

/// A part in thousandths as the page writes it.
fn percent(permille: &Value) -> String {
    match permille.as_u64() {
        None => "–".to_owned(),
        Some(part) if part < 1000 => format!("{}.{} %", part / 10, part % 10),
        Some(part) => format!("{} %", part / 10),
    }
}

fn sum(counts: &Value) -> u64 {
    let counts = counts.as_object().into_iter().flatten();
    counts.filter_map(|(_, count)| count.as_u64()).sum()
}

/// Checks that the page shows what became of the requests on the executor.
fn check_executor(dom: &str, data: &Value) -> Result<()> {
    let (executor, activity) = (&data["executors"][0], &data["activity"][0]);
    let row = "data-executor=\"cpu0/demo\"";
    for (name, wanted) in [
        ("placed", grouped(&executor["placed_total"])),
        ("slots", "0 / 8".to_owned()),
        ("models", "demo".to_owned()),
        ("served", grouped(&activity["served"])),
        ("mean", measured(&activity["mean_micros"])),
        ("sessions", percent(&activity["session_hit_permille"])),
    ] {
        let shown = cell(dom, row, name)?;
        ensure!(
            shown == wanted && shown != "–",
            "{name}: {shown} is not {wanted}"
        );
    }
    // Its part of all that were served is below their number.
    let (_, from) = dom.split_once(row).context("no row")?;
    let (_, from) = from
        .split_once("data-f=\"served\"")
        .context("no requests")?;
    ensure!(text(from, "<small")? == percent(&activity["share_permille"]));
    // Since the numbers were asked for it was idle.
    let shown = cell(dom, row, "utilisation")?;
    let shown: f64 = shown.trim_end_matches(" %").parse()?;
    let before = activity["utilisation_permille"].as_f64().context("idle")?;
    ensure!(
        shown > 0.0 && shown <= before / 10.0,
        "{shown} after {before}"
    );
    let report = cell(dom, row, "report")?;
    ensure!(
        report.ends_with(" ago") && !report.starts_with('0'),
        "{report}"
    );
    Ok(())
}

/// Checks that the page shows the numbers of the host and its models.
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
    Ok(())
}

/// Checks that the page shows how long requests waited, and the minutes of the last hour.
fn check_times(dom: &str, data: &Value) -> Result<()> {
    for (id, times) in [("wait", "queue_wait"), ("ttft", "first_token")] {
        let count = &data["recent"][times]["count"];
        let said = text(dom, &format!("id=\"{id}-text\""))?;
        ensure!(
            said.starts_with(&format!("of {} in 15 minutes, mean ", grouped(count))),
            "{said}"
        );
    }
    let part = |part: &str| measured(&data["queue_wait"][format!("{part}_micros")]);
    let [p10, mean, p90] = ["p10", "mean", "p90"].map(part);
    let hour = text(dom, "id=\"wait-hour\"")?;
    ensure!(
        hour == format!("in the last hour p10 {p10}, mean {mean}, p90 {p90}"),
        "{hour}"
    );
    for part in ["p50", "p95"] {
        let shown = text(dom, &format!("id=\"ttft-{part}\""))?;
        ensure!(shown.ends_with('s') && shown != "0s", "{part}: {shown}");
    }
    // A bar for each minute with traffic.
    for plot in [
        "finished",
        "queued",
        "running",
        "tokens",
        "wait",
        "ttft",
        "ttft-middle",
    ] {
        ensure!(
            dom.contains(&format!("id=\"{plot}-bars\" d=\"M")),
            "{plot}: {dom}"
        );
    }
    Ok(())
}

/// Checks that the page shows the last requests, each with its decision, and the tenants.
fn check_requests(dom: &str, data: &Value) -> Result<()> {
    let requests = data["requests"].as_array().context("no requests")?;
    ensure!(requests.len() > 8, "{requests:?}");
    for request in requests {
        let row = format!("data-ended=\"{}\"", request["request"]);
        ensure!(
            cell(dom, &row, "tenant")? == "default" && cell(dom, &row, "executor")? == "cpu0/demo"
        );
        let tokens = ["prompt_tokens", "output_tokens"].map(|key| grouped(&request[key]));
        ensure!(
            cell(dom, &row, "tokens")? == tokens.join(" + "),
            "{tokens:?}"
        );
        let decision = request["decision"].as_str().context("no decision")?;
        let (_, row) = dom.split_once(&row).context("no row")?;
        ensure!(text(row, "<summary")? == decision, "{decision}: {row}");
    }
    let tenant = "data-tenant=\"default\"";
    let tokens = grouped(&data["tenants"][0]["tokens_total"]);
    ensure!(cell(dom, tenant, "tokens")? == tokens, "{tokens}: {dom}");
    ensure!(
        cell(dom, tenant, "requests-a-minute")? == "no limit",
        "{dom}"
    );
    ensure!(cell(dom, tenant, "at-once")? == "0 / 100", "{dom}");
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

/// The name of the policy that has `hook`, as the page shows it.
fn holder(dom: &str, hook: &str) -> Result<String> {
    let (_, from) = dom
        .split_once(&format!("data-hook=\"{hook}\""))
        .context("no hook")?;
    text(from, "<strong")
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
    for (hook, held) in data["policies"]["hooks"].as_object().context("no hooks")? {
        let name = held["policy"].as_str().context("nobody holds it")?;
        ensure!(holder(dom, hook)? == name, "{hook}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_under_traffic_and_after_it_the_numbers_of_monitor_data() -> Result<()> {
    let serving = Serving::start(|config| {
        config.tenants = vec![TenantConfig {
            limits: TenantLimits {
                concurrent_max: Some(100),
                ..TenantLimits::default()
            },
            ..TenantConfig::new("default")
        }];
    })
    .await?;
    let url = format!("http://{}/monitor", serving.server.addr());
    let load = LoadGenerator::start(serving.client, 12, |_| {
        let mut body = streamed_chat("Hello");
        body["max_tokens"] = json!(64);
        body["ignore_eos"] = json!(true);
        body["pointsman"] = json!({"session": "ann"});
        body
    });
    serving
        .load_until(|load| load.slots_used == 8 && load.queued > 0)
        .await?;
    // Between two rounds the queue may be empty.
    let waited_for = timeout(PATIENCE, async {
        loop {
            let dom = shown(&url).await?;
            if dom.contains("data-request=") {
                return anyhow::Ok(dom);
            }
        }
    });
    let dom = waited_for.await.context("nobody is shown waiting")??;
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
    check_executor(&dom, &data)?;
    check_times(&dom, &data)?;
    check_requests(&dom, &data)?;
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

/// Help for a test's script: `until(found, then)` calls `then` once `found` gives something.
const UNTIL: &str = "const until = (found, then) => {
  const look = () => { const it = found(); if (it) then(it); else setTimeout(look, 50); };
  look();
};\n";

/// A server whose policy `mine` routes, where operators need a key.
async fn ejectable() -> Result<Serving> {
    let serving = Serving::start(|config| {
        config.admin.key = Some(Secret::new("root".to_owned()));
        config.admin.read_key = Some(Secret::new("look".to_owned()));
    })
    .await?;
    serving.decide_by("mine", "round-robin", "").await?;
    Ok(serving)
}

/// The elements of the page after an operator with this key has wanted to eject `mine` and given
/// this answer to the question.
async fn ejecting(serving: &Serving, key: &str, answer: &str) -> Result<String> {
    ejecting_beside("", serving, (key, answer)).await
}

/// The same while another script runs in the page.
async fn ejecting_beside(
    other: &str,
    serving: &Serving,
    (key, answer): (&str, &str),
) -> Result<String> {
    let script = format!(
        "{UNTIL}{other}const at = (mark) => () => document.querySelector(mark);
        until(() => document.getElementById('locked').classList.contains('on'), () => {{
          document.getElementById('key').value = '{key}';
          document.querySelector('#key-form button').click();
        }});
        until(at('[data-eject=mine]'), (eject) => {{
          eject.click();
          until(at('#eject[open] #eject-{answer}'), (choice) => {{
            document.body.dataset.asked = document.getElementById('eject').textContent;
            choice.click();
          }});
        }});"
    );
    let page = Used {
        path: "/monitor",
        width: 1280,
        scheme: ColorScheme::Light,
        script: &script,
    };
    let dom = used(serving.server.addr(), page).await?;
    let (_, asked) = dom.split_once("data-asked=\"").context("not asked")?;
    ensure!(asked.starts_with("Eject mine?"), "{asked}");
    Ok(dom)
}

fn mine_routes(report: &ReconcilerReport) -> bool {
    holds(report, "mine")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_is_ejected_once_the_question_is_answered_with_yes() -> Result<()> {
    let serving = ejectable().await?;
    let dom = ejecting(&serving, "root", "no").await?;
    ensure!(dom.contains("data-eject=\"mine\""), "{dom}");
    ensure!(mine_routes(&serving.server.reports().borrow()));
    let dom = ejecting(&serving, "root", "yes").await?;
    let said = text(&dom, "id=\"ordered-text\"")?;
    ensure!(
        said == "mine is ejected: the embedded defaults decide routing.",
        "{said}"
    );
    serving.report_until(|report| !mine_routes(report)).await?;
    // What an embedded default decides cannot be ejected.
    ensure!(!dom.contains("data-eject=\""), "{dom}");
    serving.server.stop().await?;
    Ok(())
}

/// Has the page hear, once an order is carried out, from a server that has just begun and where `anew`
/// routes: the time of a browser passes too fast for a server to be started in it.
const RESTART: &str = "const heard = window.fetch;
until(() => document.getElementById('ordered').classList.contains('on'), () => {
  window.fetch = async (path, options) => {
    const answer = await heard(path, options);
    if (path !== '/monitor/data') return answer;
    const data = await answer.json();
    data.at_micros = data.policies.at_micros = 1;
    data.policies.hooks.routing = { policy: 'anew', number: 1 };
    return new Response(JSON.stringify(data));
  };
});\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_restarted_after_an_eject_is_shown_as_it_is() -> Result<()> {
    let serving = ejectable().await?;
    let dom = ejecting_beside(RESTART, &serving, ("root", "yes")).await?;
    serving.report_until(|report| !mine_routes(report)).await?;
    ensure!(holder(&dom, "routing")? == "anew", "{dom}");
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_for_questions_ejects_nothing_and_the_page_says_so() -> Result<()> {
    let serving = ejectable().await?;
    let dom = ejecting(&serving, "look", "yes").await?;
    let said = text(&dom, "id=\"ordered-text\"")?;
    let sentence = "mine is not ejected: the key `admin.read-key` may ask and give no orders; \
                    those take `admin.key`.";
    ensure!(said == sentence, "{said}");
    ensure!(mine_routes(&serving.server.reports().borrow()));
    ensure!(!dom.contains("data-eject=\""), "{dom}");
    serving.server.stop().await?;
    Ok(())
}

//! `/admin` of a whole server: access, contents, and the effects of orders.

mod executors;

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use pointsman_config::Config;
use pointsman_notation::Secret;
use pointsman_tests::client::{Answer, Client, Stream, chat, endless_chat};
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};

/// The body of a request that runs until its client leaves.
fn long() -> Value {
    endless_chat("Hello", 1900)
}

async fn running(client: Client) -> Result<Stream> {
    client.running(&long()).await
}

async fn ok(answer: impl Future<Output = Result<Answer>>) -> Result<Value> {
    let answer = answer.await?;
    ensure!(answer.status.is_success(), "{:?}", answer.json());
    answer.json()
}

fn error(answer: &Answer) -> Result<(u16, String)> {
    let message = answer.json()?["error"]["message"]
        .as_str()
        .map(str::to_owned);
    Ok((answer.status.as_u16(), message.context("no message")?))
}

// === Access ===

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    None,
    Wrong,
    Right,
}

/// Statuses at the clients' listener and at the operators', where there is one, with each key.
async fn statuses(serving: &Serving, path: &str) -> Result<Vec<(u16, Option<u16>)>> {
    let mut statuses = Vec::new();
    for key in [Key::None, Key::Wrong, Key::Right] {
        let with = |addr: SocketAddr| match key {
            Key::None => Client::new(addr),
            Key::Wrong => Client::new(addr).with_key("guess"),
            Key::Right => Client::new(addr).with_key("root"),
        };
        let port = serving.server.addr().port();
        // A server that listens on every address is reached on this machine too.
        let clients = with(SocketAddr::from(([127, 0, 0, 1], port)));
        let clients = clients.get(path).await?.status.as_u16();
        let operators = match serving.server.admin_addr() {
            Some(addr) => Some(with(addr).get(path).await?.status.as_u16()),
            None => None,
        };
        statuses.push((clients, operators));
    }
    Ok(statuses)
}

#[tokio::test]
async fn admin_and_monitor_are_for_operators_only() -> Result<()> {
    let anywhere: SocketAddr = "0.0.0.0:0".parse()?;
    let keyed = |config: &mut Config| config.admin.key = Some(Secret::new("root".to_owned()));
    // On loopback without a key: everybody on this machine.
    let serving = Serving::start(|_| {}).await?;
    for path in [
        "/admin/policies",
        "/admin/executors",
        "/monitor/data",
        "/monitor",
    ] {
        let open = vec![(200, None); 3];
        ensure!(statuses(&serving, path).await? == open, "{path}");
    }
    serving.server.stop().await?;
    // With a key: only its holders. The page itself contains nothing and asks for the key.
    let serving = Serving::start(keyed).await?;
    let locked = vec![(401, None), (401, None), (200, None)];
    for path in ["/admin/policies", "/monitor/data"] {
        ensure!(statuses(&serving, path).await? == locked, "{path}");
    }
    ensure!(serving.client.get("/monitor").await?.status == 200);
    serving.server.stop().await?;
    // On an address that others reach, without a key: nobody,
    let serving = Serving::start(|config| config.listen = anywhere).await?;
    for path in ["/admin/policies", "/monitor/data", "/monitor"] {
        ensure!(
            statuses(&serving, path).await? == vec![(403, None); 3],
            "{path}"
        );
    }
    let port = serving.server.addr().port();
    let client = Client::new(SocketAddr::from(([127, 0, 0, 1], port)));
    let (_, message) = error(&client.get("/admin/policies").await?)?;
    ensure!(
        message.contains("`admin.key` or `admin.listen`"),
        "{message}"
    );
    ensure!(client.get("/v1/models").await?.status == 200);
    serving.server.stop().await?;
    // and with a key: its holders.
    let serving = Serving::start(|config| {
        config.listen = anywhere;
        keyed(config);
    })
    .await?;
    ensure!(statuses(&serving, "/admin/policies").await? == locked);
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_listener_of_their_own_is_for_operators_and_for_nobody_else() -> Result<()> {
    let own: SocketAddr = "127.0.0.1:0".parse()?;
    let serving = Serving::start(|config| {
        config.listen = SocketAddr::from(([0, 0, 0, 0], 0));
        config.admin.listen = Some(own);
    })
    .await?;
    for path in ["/admin/policies", "/monitor/data", "/monitor"] {
        let there = vec![(403, Some(200)); 3];
        ensure!(statuses(&serving, path).await? == there, "{path}");
    }
    let operators = Client::new(serving.server.admin_addr().context("no listener")?);
    for path in ["/health", "/ready", "/metrics", "/openapi.json"] {
        ensure!(operators.get(path).await?.status == 200, "{path}");
    }
    let (status, message) = error(&operators.chat("Hello").await?)?;
    ensure!(
        status == 403 && message.contains("for operators"),
        "{message}"
    );
    serving.server.stop().await?;
    let serving = Serving::start(|config| {
        config.admin.listen = Some(own);
        config.admin.key = Some(Secret::new("root".to_owned()));
    })
    .await?;
    let locked = [(403, Some(401)), (403, Some(401)), (403, Some(200))];
    ensure!(statuses(&serving, "/admin/policies").await? == locked);
    serving.server.stop().await?;
    Ok(())
}

// === Policies ===

#[tokio::test]
async fn an_order_that_cannot_be_carried_out_is_refused_with_the_reason() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    let client = serving.client;
    for (path, body, status, part) in [
        (
            "bind",
            json!({"hook": "rooting"}),
            400,
            "there is no hook `rooting`",
        ),
        ("bind", json!({"policy": "aging"}), 400, "`hook` is missing"),
        (
            "bind",
            json!({"hook": "routing", "to": "x"}),
            400,
            "there is no `to`",
        ),
        (
            "bind",
            json!({"hook": "routing", "policy": "x"}),
            404,
            "no policy x",
        ),
        (
            "bind",
            json!({"hook": "routing", "policy": "aging"}),
            409,
            "does not export routing",
        ),
        (
            "policies/aging/mode",
            json!({"mode": "loud"}),
            400,
            "enforce, shadow, or canary",
        ),
        ("policies/x/promote", json!({}), 404, "no policy x"),
        (
            "policies/aging/promote",
            json!({}),
            409,
            "neither a shadow nor a canary",
        ),
        ("policies/aging/rollback", json!({}), 409, "aging"),
        ("quarantine/12/release", json!({}), 400, "`12`"),
        (
            "eject",
            json!({"hooks": ["all"]}),
            400,
            "there is no hook `all`",
        ),
    ] {
        let answer = client.post(&format!("/admin/{path}"), &body).await?;
        let (got, message) = error(&answer)?;
        ensure!(
            got == status && message.contains(part),
            "{path} {body}: {got} {message}"
        );
    }
    let unknown = format!("/admin/quarantine/{}/release", "0".repeat(64));
    ensure!(client.post(&unknown, &json!({})).await?.status == 404);
    // A server without a state folder says so.
    let (status, message) = error(&client.get("/admin/dumps").await?)?;
    ensure!(
        status == 404 && message.contains("state-folder"),
        "{message}"
    );
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test]
async fn an_order_is_answered_with_what_is_in_force_then() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    let client = serving.client;
    serving
        .decide_by("first-policy", "first-policy", "")
        .await?;
    let ejected = ok(client.post("/admin/eject", &json!({"hooks": ["routing"]}))).await?;
    ensure!(
        ejected["hooks"]["routing"]["policy"] == "memory-aware",
        "{ejected}"
    );
    let bind = json!({"hook": "routing", "policy": "first-policy"});
    let bound = ok(client.post("/admin/bind", &bind)).await?;
    ensure!(
        bound["hooks"]["routing"]["policy"] == "first-policy",
        "{bound}"
    );
    serving.server.stop().await?;
    Ok(())
}

// === Dry runs ===

#[tokio::test]
async fn where_a_request_would_go_is_told_and_nothing_changes() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    let client = serving.client;
    let before = ok(client.get("/admin/policies")).await?;
    let told = ok(client.post("/admin/route", &chat("Hello"))).await?;
    ensure!(
        told["would"] == "place" && told["executor"] == "cpu0/demo",
        "{told}"
    );
    ensure!(told["by"]["policy"] == "memory-aware", "{told}");
    ensure!(
        told["by"]["reason"]
            .as_str()
            .is_some_and(|why| !why.is_empty()),
        "{told}"
    );
    let candidate = &told["candidates"][0];
    ensure!(candidate["takes_it_now"] == true, "{told}");
    ensure!(
        candidate["eligible"] == true && candidate["cost"].is_i64(),
        "{told}"
    );
    ensure!(
        told["request"]["prompt_tokens"].as_u64() > Some(0),
        "{told}"
    );
    let small =
        json!({"model": "demo", "prompt_tokens": 100, "max_tokens": 5, "tenant": "default"});
    let told = ok(client.post("/admin/route", &small)).await?;
    ensure!(told["request"]["prompt_tokens"] == 100, "{told}");
    let after = ok(client.get("/admin/policies")).await?;
    ensure!(before["policies"] == after["policies"], "{before}\n{after}");
    // A full executor would make the request wait; the real request goes where the dry run said.
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(running(client).await?);
    }
    let told = ok(client.post("/admin/route", &small)).await?;
    ensure!(told["would"] != "place", "{told}");
    ensure!(
        told["candidates"][0]["interlock"] == "no slot free",
        "{told}"
    );
    let unknown = json!({"model": "demo", "prompt_tokens": 1, "tenant": "nobody"});
    let (status, message) = error(&client.post("/admin/route", &unknown).await?)?;
    ensure!(
        status == 400 && message.contains("no tenant `nobody`"),
        "{message}"
    );
    let (status, message) = error(
        &client
            .post("/admin/route", &json!({"model": "demo"}))
            .await?,
    )?;
    ensure!(
        status == 400 && message.contains("`prompt` is missing"),
        "{message}"
    );
    drop(streams);
    serving.idle().await?;
    Ok(())
}

// === Decisions about requests ===

#[tokio::test]
async fn how_a_request_was_decided_is_told_by_either_of_its_ids() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    let client = serving.client;
    let answer = client.chat("Hello").await?;
    let id = answer.json()?["id"].as_str().context("no id")?.to_owned();
    let by_id = ok(client.get(&format!("/admin/decisions/{id}"))).await?;
    let number = answer.header("x-pointsman-request");
    let by_number = ok(client.get(&format!("/admin/decisions/{number}"))).await?;
    ensure!(by_id["steps"] == by_number["steps"], "{by_id}\n{by_number}");
    let steps = by_id["steps"].as_array().context("no steps")?;
    let step = |what: &str, hook: Option<&str>| {
        let mut steps = steps.iter();
        let found =
            steps.find(|step| step["what"] == what && hook.is_none_or(|hook| step["hook"] == hook));
        found.with_context(|| format!("{what} {hook:?} not in {by_id}"))
    };
    let asked = step("asked", Some("routing"))?;
    ensure!(asked["by"] == "memory-aware", "{asked}");
    ensure!(
        asked["answer"]["place"]["executors"] == json!(["cpu0/demo"]),
        "{asked}"
    );
    step("asked", Some("admission"))?;
    step("admitted", None)?;
    let placed = step("placed", None)?;
    ensure!(placed["executor"] == "cpu0/demo", "{placed}");
    // The client was told the same.
    ensure!(
        placed["reason"] == answer.header("x-pointsman-reason"),
        "{placed}"
    );
    ensure!(
        placed["round"] == answer.header("x-pointsman-decision"),
        "{placed}"
    );
    step("started", None)?;
    ensure!(by_id["outcome"]["how"] == "finished", "{by_id}");
    ensure!(by_id["explanation"]["by"] == "memory-aware", "{by_id}");
    ensure!(
        by_id["explanation"]["candidates"][0]["executor"] == "cpu0/demo",
        "{by_id}"
    );
    for unknown in ["999999", "chatcmpl-00000000000000000", "x"] {
        let (status, message) = error(&client.get(&format!("/admin/decisions/{unknown}")).await?)?;
        ensure!(
            status == 404 && message.contains("admin.decisions-max"),
            "{message}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn the_newest_decisions_are_listed_and_older_ones_forgotten() -> Result<()> {
    let serving = Serving::start(|config| config.admin.decisions_max = 3).await?;
    let client = serving.client;
    for _ in 0..5 {
        client.chat("Hello").await?.text()?;
    }
    let listed = ok(client.get("/admin/decisions?last=2")).await?;
    let ids = |listed: &Value| -> Vec<Option<u64>> {
        let list = listed["decisions"].as_array();
        list.into_iter()
            .flatten()
            .map(|case| case["id"].as_u64())
            .collect()
    };
    ensure!(ids(&listed) == [Some(4), Some(3)], "{listed}");
    let listed = ok(client.get("/admin/decisions")).await?;
    ensure!(ids(&listed) == [Some(4), Some(3), Some(2)], "{listed}");
    ensure!(client.get("/admin/decisions/1").await?.status == 404);
    ensure!(client.get("/admin/decisions?last=0").await?.status == 400);
    Ok(())
}

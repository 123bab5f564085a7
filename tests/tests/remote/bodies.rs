//! The memory of bodies that are passed on.

use anyhow::{Result, bail, ensure};
use pointsman_tests::backend::{Conduct, MockBackend};
use tokio::task::JoinSet;

use super::{backend, over, serving_with};

const CHAT: &str = "/v1/chat/completions";
const MIB: usize = 1 << 20;

/// A chat of almost 2 MiB, which begins with these fields.
fn chat(fields: &str) -> String {
    let blanks = " ".repeat(2 * MIB - 4096);
    let messages = r#"[{"role": "user", "content": "Hi"}]"#;
    format!(r#"{{{fields}"model": "demo",{blanks}"messages": {messages}}}"#)
}

#[tokio::test]
async fn a_body_that_is_passed_on_without_its_hints_is_counted_to_its_end() -> Result<()> {
    for fields in ["", r#""pointsman": {"priority": 3}, "#] {
        let mock = MockBackend::start(&["demo"]).await?;
        mock.does(Conduct::Steps(1));
        let serving = serving_with([backend("elsewhere", &mock)?], |config| {
            config.http.body_bytes_max = 2 * MIB;
            config.http.bodies_bytes_max = 4 * MIB;
        });
        let serving = serving.await?;
        let client = serving.client;
        let ask = || {
            let body = chat(fields);
            async move { client.raw(CHAT, &[], body).await }
        };
        let mut held = JoinSet::new();
        for count in 1..=2 {
            held.spawn(ask());
            mock.runs(count).await?;
        }
        // The order is irrelevant: the third one is refused, or runs.
        let refused = tokio::select! {
            refused = ask() => refused?,
            third = mock.runs(3) => bail!("{fields}: there is room for it ({third:?})"),
        };
        ensure!(refused.status == 429, "{fields}: {}", refused.status);
        let code = refused.json()?["error"]["code"].clone();
        ensure!(code == "bodies_full", "{fields}: {code}");
        mock.allow(2);
        while let Some(answer) = held.join_next().await {
            ensure!(answer??.status == 200);
        }
        over(serving).await?;
    }
    Ok(())
}

//! The first policy of `policies/README.md` as the page shows it, so that what people copy compiles
//! and passes its test.

use pointsman_sdk::wire::types::AskedRequest;
use pointsman_sdk::{Description, Feed, Mirror, Moment, NoSettings, Policy, Priority, export};

/// The shortest prompt first.
#[derive(Debug)]
pub struct ShortestPrompt;

impl Policy for ShortestPrompt {
    type Settings = NoSettings;

    fn describe() -> Description {
        Description {
            name: "shortest-prompt".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "The shortest prompt first.".into(),
            reasons: vec![],
            state_version: 1,
        }
    }

    fn new(_: NoSettings) -> Result<Self, String> {
        Ok(Self)
    }
}

impl Priority for ShortestPrompt {
    const NEEDS: Feed = Feed::WAITING;

    fn order(&mut self, mirror: &Mirror, _: Moment, requests: &[AskedRequest]) -> Vec<u64> {
        let ids = requests.iter().map(|asked| asked.request);
        let known = ids.filter_map(|id| mirror.request(id));
        let mut order: Vec<_> = known.map(|row| (row.prompt_tokens, row.id)).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, id)| id).collect()
    }
}

export!(ShortestPrompt: priority);

/// The text of the page.
const PAGE: &str = include_str!("../../README.md");

/// The files that the Rust of the page is from.
const SOURCES: [&str; 2] = [
    include_str!("book.rs"),
    include_str!("../../least-loaded/src/lib.rs"),
];

#[test]
fn the_rust_of_the_page_is_code_that_compiles() {
    let blocks = PAGE.split("```rust\n").skip(1);
    let blocks = blocks.filter_map(|rest| Some(rest.split_once("```")?.0));
    let blocks: Vec<&str> = blocks.collect();
    assert!(!blocks.is_empty(), "the page shows policies");
    for block in blocks {
        let has_source = SOURCES.iter().any(|source| source.contains(block));
        assert!(has_source, "no source has this:\n{block}");
    }
}

#[cfg(test)]
mod tests {
    use pointsman_sdk::fixture;
    use pointsman_sdk::wire::types::{Change, Extent, Request};

    use super::*;

    #[test]
    fn the_shorter_prompt_goes_first() {
        let mut policy = instance();
        policy.configure("{}", fixture::bounds()).unwrap();
        let long = Request {
            prompt_tokens: 500,
            ..fixture::request(1)
        };
        let short = fixture::request(2);
        let waiting = vec![Change::Waiting(long), Change::Waiting(short)];
        policy.observe(0, Extent::Everything, waiting);
        let asked = fixture::asked(&[1, 2]);
        assert_eq!(policy.order(fixture::at(0), asked), [2, 1]);
    }
}

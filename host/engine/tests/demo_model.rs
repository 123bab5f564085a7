//! The demo model behind the engine: its golden answers, however it is driven.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use fastrand::Rng;
use pointsman_executor::delivery::StopReason;
use pointsman_executor::form::AnswerForm;
use pointsman_executor::job::Job;
use pointsman_executor::prompt::{ChatMessage, PromptEncoder as _};
use pointsman_executor::test_util::{TestHost, job, random_sampling};
use serde::Deserialize;

use pointsman_engine::test_util::demo_text;
use pointsman_engine::test_util::subjects::{Stepped, demo};

#[derive(Deserialize)]
struct Golden {
    message: String,
    prompt_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
    greedy_text: String,
}

/// A schema of texts that are longer than any answer here.
const SCHEMA: &str =
    r#"{"type": "array", "items": {"type": "string", "maxLength": 9}, "minItems": 50}"#;

/// Room for every golden answer.
const OUTPUT_TOKENS_MAX: u32 = 120;

fn golden() -> Vec<Golden> {
    let golden = include_str!("../../../examples/demo-model/golden.json");
    serde_json::from_str(golden).unwrap()
}

fn prompt(message: &str) -> Vec<u32> {
    let messages = [ChatMessage::new("user", message)];
    demo_text().chat_prompt(&messages, &[], u32::MAX).unwrap()
}

/// The pool is too small for all, so that some are preempted; the host compares each answer with
/// that of the same job alone.
#[test]
fn golden_answers_come_out_of_the_engine_however_it_is_driven() {
    for budget in [2, 16, u32::MAX] {
        let mut host = TestHost::new(Stepped::new(&[demo]));
        host.set_budget(budget);
        let golden = golden();
        let requests = golden.iter().map(|golden| {
            let prompt = prompt(&golden.message);
            assert_eq!(prompt, golden.prompt_ids);
            host.arrive(job(&prompt, OUTPUT_TOKENS_MAX))
        });
        let requests: Vec<_> = requests.collect();
        host.run_out();
        for (golden, request) in golden.iter().zip(requests) {
            assert_eq!(host.shown(request), golden.greedy_text);
            assert_eq!(host.alone(request).ids, golden.greedy_ids);
            assert_eq!(host.stop_reason(request), Some(StopReason::Stop));
        }
    }
}

#[test]
fn sampled_answers_survive_preemption_after_any_step() {
    let mut rng = Rng::with_seed(31);
    for steps in 0..25 {
        let mut host = TestHost::new(Stepped::new(&[demo]));
        host.set_budget(7);
        let mut ask = |message| Job {
            sampling: random_sampling(&mut rng),
            form: rng
                .bool()
                .then(|| AnswerForm::JsonSchema(SCHEMA.to_owned())),
            ..job(&prompt(message), 40)
        };
        let asked = host.start(ask("Tell me a story about a fox."));
        let other = host.start(ask("Spell the word green."));
        for _ in 0..steps {
            host.try_grant(asked);
            host.try_grant(other);
            if host.owes_events() {
                host.turn();
            }
        }
        if host.running().contains(&asked) {
            host.evict(asked);
            host.turn();
        }
        let heir = host.start(ask("Count from 3 to 30."));
        host.run_out();
        for request in [asked, other, heir] {
            assert!(host.is_finished(request));
        }
    }
}

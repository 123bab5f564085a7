//! The queue to a collector, and the share of requests that is recorded.

use pointsman_core::{Config, Machine, Outcome, PromptBlocks, Round};
use pointsman_executor::job::{Job, Sampling};
use pointsman_executor::trace::TraceId;
use pointsman_policy::{Patience, PolicyHost};

use super::*;
use crate::message::Hints;

fn submission() -> Submission {
    let job = Job {
        sampling: Sampling::GREEDY,
        ..Job::new(vec![1, 2, 3], 4)
    };
    let origin = TraceOrigin {
        operation: Operation::Chat,
        asked: AskedFor::default(),
        parent: None,
    };
    Submission {
        model: Some("demo".to_owned()),
        tenant: "default".to_owned(),
        job: Arc::new(job),
        prompt_blocks: PromptBlocks::default(),
        hints: Hints::default(),
        trace: Some(Box::new(origin)),
    }
}

/// Has a request arrive and end.
fn pass(spans: &mut Spans, number: u64) {
    let machine = Machine::new(Config::default()).unwrap();
    let policies = PolicyHost::new(Patience::default());
    let texts = Texts {
        machine: &machine,
        policies: &policies,
    };
    let request = RequestId(number);
    if let Some(span) = spans.begin(Micros(1), TicketId(number), &submission()) {
        spans.arrived(request, span);
    }
    let ended = Stamped {
        now: Micros(2),
        round: Round(1),
        fact: Fact::Ended(request, Outcome::Cancelled),
    };
    spans.fact(&ended, None, texts);
    assert!(spans.live.is_empty());
}

#[test]
fn a_collector_that_does_not_keep_up_loses_spans_and_they_are_counted() {
    let metrics = Arc::new(Metrics::default());
    let (mut spans, mut ended) = spans(1.0, Arc::clone(&metrics));
    for number in 0..SPANS_MAX as u64 + 5 {
        pass(&mut spans, number);
    }
    let text = metrics.render();
    let dropped = "pointsman_traced_requests_total{outcome=\"dropped\"} 5\n";
    assert!(text.contains(dropped), "{text}");
    for number in 0..SPANS_MAX as u64 {
        assert_eq!(ended.try_recv().unwrap().ticket, Some(TicketId(number)));
    }
    assert!(ended.try_recv().is_err());
}

#[test]
fn a_refused_request_is_recorded_as_its_client_says_and_has_nothing_of_the_driver() {
    let (spans, mut ended) = spans(0.0, Arc::default());
    let unsampled = SpanContext::root(TraceId::new(1).unwrap(), drawn_span());
    let parent = |parent| {
        Some(TraceHeaders {
            parent,
            state: None,
        })
    };
    let refuse = |parent| {
        spans.queue().refused(EarlyRefusal {
            origin: TraceOrigin {
                operation: Operation::Chat,
                asked: AskedFor::default(),
                parent,
            },
            arrived: Micros(1),
            ended: Micros(3),
            status: 401,
            why: "invalid_api_key",
        });
    };
    refuse(None);
    refuse(parent(unsampled));
    assert!(ended.try_recv().is_err());
    refuse(parent(unsampled.sampled()));
    let span = ended.try_recv().unwrap();
    assert_eq!((span.arrived, span.ended), (Micros(1), Micros(3)));
    assert_eq!(span.error, Some(("refused", "invalid_api_key")));
    assert_eq!(
        (span.status, span.ticket, span.tenant),
        (Some(401), None, None)
    );
}

#[test]
fn a_share_of_the_traces_that_begin_here_is_recorded() {
    let count = |ratio: f64| {
        let (mut spans, mut ended) = spans(ratio, Arc::default());
        for number in 0..1000 {
            pass(&mut spans, number);
        }
        std::iter::from_fn(|| ended.try_recv().ok()).count()
    };
    assert_eq!((count(0.0), count(1.0)), (0, 1000));
    let some = count(0.3);
    // Further from 300 than this it is once in 10^20 runs.
    assert!((150..450).contains(&some), "{some}");
}

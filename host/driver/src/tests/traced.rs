//! Requests as spans, with a real machine.

use super::super::spans::{PlacementEnd, spans};
use super::*;

#[test]
fn a_request_that_ends_while_it_runs_is_told_of_with_all_that_it_used() {
    let mut stage = Stage::new();
    let (spans, mut ended) = spans(1.0, Arc::default());
    stage.driver.spans = Some(spans);
    let (ticket, _deliveries) = stage.submit();
    let start = stage.start();
    let sequence = start.order.sequence;
    let steps = stepped(sequence.request, 3, 1);
    stage.says(0, vec![Event::Started(sequence), steps]);
    stage.driver.depart(AT, ticket);
    stage.settle();
    assert!(ended.try_recv().is_err(), "it is still on its executor");
    // A step that was under way.
    let step = stepped(sequence.request, 0, 1);
    let left = Event::Left {
        sequence,
        state: Box::new(start.sequence),
        swapped_tokens: 0,
    };
    stage.says(0, vec![step, left]);
    let span = ended.try_recv().unwrap();
    assert_eq!(span.ticket, Some(ticket));
    assert_eq!(span.error, Some(("cancelled", "")));
    let places = span.placements.iter();
    let places: Vec<_> = places.map(|it| (it.end, it.output_tokens)).collect();
    let expected = (2, vec![(PlacementEnd::CutOff, 2)]);
    assert_eq!((span.output_tokens, places), expected);
}

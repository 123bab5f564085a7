//! The channel that takes an answer's text from an executor to the client's response.
//!
//! A [`channel`] has room for everything a request can say, so that neither an engine nor the
//! driver ever waits for a slow client: the text that a client has not read is bounded by the
//! tokens it asked for. The place for the [`End`] is reserved from the start, so that an end always
//! arrives.
//!
//! # Cancellation
//! Dropping the [`Deliveries`] says that the client has left. Nothing here tells the machine so;
//! that is the response's duty.

use pointsman_core::Outcome;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// One message to a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The request was placed; the newest placement before the first text counts.
    Placed(Arc<Placement>),
    /// More of the answer.
    Text(Piece),
    /// The answer has ended; nothing follows.
    End(End),
}

/// A piece of an answer: whole characters, possibly none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// The text; empty where tokens have none to show.
    pub text: String,
    /// Tokens generated since the piece before.
    pub tokens: u32,
}

/// The place of a request and the decision behind it, for response headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The executor's name.
    pub executor: String,
    /// The decision to place it there.
    pub by: Authorship,
}

/// The author of a decision about a request, in words for its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorship {
    /// The policy's name; [`BUILT_IN`]: the machine's own rule.
    pub policy: String,
    /// The decision's id.
    pub decision: String,
    /// The policy's reason, in its own words.
    pub reason: String,
}

/// The name of the machine's own rule as the author of a decision.
pub const BUILT_IN: &str = "built-in";

/// The end of an answer, set by the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The outcome in the machine's books.
    pub outcome: Outcome,
    /// The reason why generation ended; absent where it did not finish.
    pub stop: Option<StopReason>,
    /// The decision by which the request is not served; absent: none, or the machine's bounds.
    pub refused_by: Option<Authorship>,
}

/// The reason why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended its answer, or a stop string came up.
    Stop,
    /// All tokens that were allowed are generated, or the model's context is full.
    Length,
}

/// Makes the channel of one request that generates at most `output_tokens_max` tokens.
#[must_use]
pub fn channel(output_tokens_max: u32) -> (TextSink, Closing, Deliveries) {
    let text_room = usize::try_from(output_tokens_max).unwrap_or(usize::MAX);
    let text_room = text_room.min(TEXT_ROOM_MAX);
    let (sender, receiver) = mpsc::channel(text_room + EXTRA);
    let closing = sender
        .clone()
        .try_reserve_owned()
        .expect("a new channel has room and its receiver");
    let sink = TextSink { sender, text_room };
    (sink, Closing(closing), Deliveries(receiver))
}

/// Messages beside text: the end and a few placements.
const EXTRA: usize = 16;
/// Most text messages: beyond any context length, and within tokio's own bound.
const TEXT_ROOM_MAX: usize = 1 << 28;

/// The executor's end of the channel, which takes the text of one request.
#[derive(Clone, Debug)]
pub struct TextSink {
    sender: mpsc::Sender<Delivery>,
    /// Places that only text may take: a piece has a token at least, so it finds one.
    text_room: usize,
}

/// The reason why a piece was not taken.
#[derive(Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// The channel has no room now. The piece comes back, to be handed in with the next one.
    Full(Piece),
    /// The client has left.
    Gone,
}

impl TextSink {
    /// Hands in a piece.
    ///
    /// # Errors
    /// If the client has left, or has been handed more pieces than tokens.
    pub fn text(&self, piece: Piece) -> Result<(), NotTaken> {
        match self.sender.try_send(Delivery::Text(piece)) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Full(Delivery::Text(piece))) => {
                Err(NotTaken::Full(piece))
            }
            Err(_) => Err(NotTaken::Gone),
        }
    }

    /// Tells the response where the request runs now. A placement is only for headers, so it is
    /// dropped where text might need the room.
    pub fn placed(&self, placement: Arc<Placement>) {
        if self.sender.capacity() > self.text_room {
            drop(self.sender.try_send(Delivery::Placed(placement)));
        }
    }

    /// Returns true once the client has left.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.sender.is_closed()
    }
}

/// The reserved place for the end.
#[derive(Debug)]
pub struct Closing(mpsc::OwnedPermit<Delivery>);

impl Closing {
    /// Tells the response how the answer ended.
    pub fn end(self, end: End) {
        self.0.send(Delivery::End(end));
    }
}

/// The response's end of the channel.
#[derive(Debug)]
pub struct Deliveries(mpsc::Receiver<Delivery>);

impl Deliveries {
    /// Polls for the next message; absent where the host ended without a word.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Delivery>> {
        self.0.poll_recv(cx)
    }

    /// Takes the next message, if one is there already.
    pub fn try_next(&mut self) -> Option<Delivery> {
        self.0.try_recv().ok()
    }

    /// Waits for the next message on this thread, which must not be one of a runtime.
    pub fn blocking_next(&mut self) -> Option<Delivery> {
        self.0.blocking_recv()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(text: &str) -> Piece {
        Piece {
            text: text.to_owned(),
            tokens: 1,
        }
    }

    fn placement() -> Arc<Placement> {
        Arc::new(Placement {
            executor: "cpu0".to_owned(),
            by: Authorship {
                policy: "memory-aware".to_owned(),
                decision: "1".to_owned(),
                reason: String::new(),
            },
        })
    }

    #[test]
    fn a_client_that_reads_nothing_gets_all_text_and_the_end_in_the_end() {
        let (sink, closing, mut deliveries) = channel(3);
        for _ in 0..100 {
            sink.placed(placement());
        }
        for text in ["a", "b", "c"] {
            assert_eq!(sink.text(piece(text)), Ok(()));
        }
        assert_eq!(sink.text(piece("d")), Err(NotTaken::Full(piece("d"))));
        let end = End {
            outcome: Outcome::Finished { output_tokens: 3 },
            stop: Some(StopReason::Length),
            refused_by: None,
        };
        closing.end(end.clone());
        let read: Vec<Delivery> = std::iter::from_fn(|| deliveries.try_next()).collect();
        let (placed, rest) = read.split_at(EXTRA - 1);
        assert!(placed.iter().all(|d| *d == Delivery::Placed(placement())));
        let text = ["a", "b", "c"].map(|text| Delivery::Text(piece(text)));
        assert_eq!(rest[..3], text);
        assert_eq!(rest[3..], [Delivery::End(end)]);
    }

    #[test]
    fn a_client_that_left_takes_nothing_and_stops_nobody() {
        let (sink, closing, deliveries) = channel(1);
        assert!(!sink.is_gone());
        drop(deliveries);
        assert!(sink.is_gone());
        assert_eq!(sink.text(piece("a")), Err(NotTaken::Gone));
        sink.placed(placement());
        closing.end(End {
            outcome: Outcome::Cancelled,
            stop: None,
            refused_by: None,
        });
    }
}

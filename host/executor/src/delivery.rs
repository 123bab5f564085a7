//! The channel that takes an answer's text from an executor to the client's response.
//!
//! A [`channel`] has room for everything a request can say, so that neither an engine nor the
//! driver ever waits for a slow client: the text that a client has not read is bounded by the
//! tokens it asked for. The place for the [`End`] is reserved from the start, so that an end always
//! arrives.
//!
//! # The host's copy
//! An executor that dies takes its sequences with it. So the host has a copy of each answer
//! (`HandedIn`), which changes together with the handing in of each piece, under one lock: a client
//! misses no character and reads none twice, wherever its answer goes on.
//!
//! # Cancellation
//! Dropping the [`Deliveries`] says that the client has left. Nothing here tells the machine so;
//! that is the response's duty.

use pointsman_events::Outcome;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::mpsc;

use crate::relay::{self, ClientGone, RelayBeginning, RelaySender, RelayedResponse};
use crate::text::TextStream;

/// One message to a response.
#[derive(Debug)]
pub enum Delivery {
    /// The request was placed; the newest placement before the first text counts.
    Placed(Arc<Placement>),
    /// More of the answer.
    Text(Piece),
    /// The embedding of the prompt, in the place of text.
    Embedding(Embedding),
    /// The response of another server, in the place of text.
    Relayed(RelayedResponse),
    /// The answer has ended; nothing follows.
    End(End),
}

/// A prompt as a direction in the space of a model's hidden states: numbers whose squares sum up to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding(pub Vec<f32>);

/// A piece of an answer: whole characters, possibly none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// The text; empty where tokens have none to show.
    pub text: String,
    /// Tokens generated since the piece before.
    pub tokens: u32,
    /// The probabilities of these tokens, where the job asks for them.
    pub logprobs: Vec<TokenLogprob>,
}

/// A token with its probability, before anything of [`Sampling`](crate::job::Sampling) is done.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub chosen: LikelyToken,
    /// The likeliest tokens in its place, the likeliest first.
    pub top: Vec<LikelyToken>,
}

/// A token as bytes, with its probability.
#[derive(Clone, Debug, PartialEq)]
pub struct LikelyToken {
    /// The token's bytes, which need not be whole characters.
    pub bytes: Vec<u8>,
    /// The natural logarithm of the token's probability.
    pub logprob: f64,
}

/// The place of a request and the decision behind it, for response headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The executor's name.
    pub executor: String,
    /// The model that answers.
    pub model: String,
    /// The decision to place it there.
    pub by: Authorship,
    /// Leading prompt tokens that the executor had already.
    pub cached_tokens: u32,
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

/// Makes the channel of one request that generates at most `output_tokens_max` tokens, or is to be embedded.
#[must_use]
pub fn channel(output_tokens_max: u32) -> (TextSink, Closing, Deliveries) {
    let text_room = usize::try_from(output_tokens_max).unwrap_or(usize::MAX);
    let text_room = text_room.clamp(1, TEXT_ROOM_MAX);
    let (sender, receiver) = mpsc::channel(text_room + EXTRA);
    let closing = sender
        .clone()
        .try_reserve_owned()
        .expect("a new channel has room and its receiver");
    let sink = TextSink {
        sender,
        text_room,
        stays: Arc::default(),
        stay: 0,
    };
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
    stays: Arc<Mutex<Stays>>,
    /// The stay of the sequence that has this end. A sequence whose stay is over can hand in nothing.
    stay: u32,
}

/// The stays of a request's sequences on executors, one after the other.
#[derive(Debug, Default)]
struct Stays {
    /// The number of the present one.
    present: u32,
    answer: HandedIn,
}

/// The host's copy of an answer, as far as its text was handed in.
#[derive(Clone, Debug, Default)]
pub(crate) struct HandedIn {
    /// Token ids generated.
    pub(crate) generated: Vec<u32>,
    /// The state of the text after them.
    pub(crate) text: TextStream,
    /// Text and tokens among them that were not handed in.
    pub(crate) unsent: Piece,
    /// The reason why generation ended; absent: it has not.
    pub(crate) stop: Option<StopReason>,
    pub(crate) origin: Origin,
}

/// The origin of the text of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Engines of this host generate it.
    #[default]
    Generated,
    /// Another server's response is passed on.
    Relayed,
}

/// A piece on its way to the client, and the answer as it is with it.
#[derive(Debug)]
pub(crate) struct NextPiece<'a> {
    pub(crate) piece: Piece,
    /// Token ids generated, with those of the piece.
    pub(crate) generated: &'a [u32],
    pub(crate) text: &'a TextStream,
    /// The reason why generation ended with this piece; absent: it goes on.
    pub(crate) stop: Option<StopReason>,
}

/// The reason why a piece was not taken.
#[derive(Debug, PartialEq)]
pub(crate) enum NotTaken {
    /// The channel has no room now. The piece comes back, to be handed in with the next one.
    Full(Piece),
    /// The client has left, or the request has gone on elsewhere.
    Gone,
}

impl TextSink {
    /// Hands in a piece, and notes the answer in the host's copy.
    ///
    /// # Errors
    /// If the client has left or has been handed more pieces than tokens, or the stay is over.
    pub(crate) fn hand_in(&self, next: NextPiece<'_>) -> Result<(), NotTaken> {
        let mut stays = self.stays();
        if stays.present != self.stay {
            return Err(NotTaken::Gone);
        }
        match self.sender.try_send(Delivery::Text(next.piece)) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(Delivery::Text(piece))) => {
                return Err(NotTaken::Full(piece));
            }
            Err(_) => return Err(NotTaken::Gone),
        }
        let answer = &mut stays.answer;
        let new = next.generated.get(answer.generated.len()..);
        answer.generated.extend_from_slice(new.unwrap_or_default());
        answer.text.clone_from(next.text);
        answer.unsent = Piece::default();
        answer.stop = next.stop;
        Ok(())
    }

    /// Hands in an embedding, with which the answer ends. Whom nobody listens to any more is not heard: the driver
    /// is told of that elsewhere.
    pub(crate) fn hand_in_embedding(&self, embedding: Embedding) {
        let mut stays = self.stays();
        if stays.present == self.stay {
            drop(self.sender.try_send(Delivery::Embedding(embedding)));
            stays.answer.stop = Some(StopReason::Stop);
        }
    }

    /// Hands in the response of another server, with its first frame, so that its client is woken once for
    /// both. What follows goes through the sender.
    ///
    /// # Errors
    /// If the client has left, or the stay is over.
    pub fn relay(&self, beginning: RelayBeginning) -> Result<RelaySender, ClientGone> {
        let mut stays = self.stays();
        if stays.present != self.stay {
            return Err(ClientGone);
        }
        let (sender, response) = relay::response(beginning);
        let sent = self.sender.try_send(Delivery::Relayed(response));
        sent.map_err(|_unsent| ClientGone)?;
        stays.answer.origin = Origin::Relayed;
        Ok(sender)
    }

    /// Begins a stay, with the answer as it is: a sequence of an earlier stay can hand in nothing more.
    pub(crate) fn begin_stay(&mut self, answer: HandedIn) {
        let present = {
            let mut stays = self.stays();
            stays.present += 1;
            stays.answer = answer;
            stays.present
        };
        self.stay = present;
    }

    /// Ends the present stay. Returns the answer as far as it was handed in.
    pub(crate) fn end_stay(&self) -> HandedIn {
        let mut stays = self.stays();
        stays.present += 1;
        stays.answer.clone()
    }

    /// The stays. An executor that dies with the lock leaves the answer as it was before or after a piece.
    fn stays(&self) -> MutexGuard<'_, Stays> {
        self.stays.lock().unwrap_or_else(PoisonError::into_inner)
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
            logprobs: Vec::new(),
        }
    }

    /// Hands in a piece as the only one.
    fn hand_in(sink: &TextSink, text: &str) -> Result<(), NotTaken> {
        sink.hand_in(NextPiece {
            piece: piece(text),
            generated: &[],
            text: &TextStream::default(),
            stop: None,
        })
    }

    fn placement() -> Arc<Placement> {
        Arc::new(Placement {
            executor: "cpu0".to_owned(),
            model: "demo".to_owned(),
            by: Authorship {
                policy: "memory-aware".to_owned(),
                decision: "1".to_owned(),
                reason: String::new(),
            },
            cached_tokens: 0,
        })
    }

    #[test]
    fn a_client_that_reads_nothing_gets_all_text_and_the_end_in_the_end() {
        let (sink, closing, mut deliveries) = channel(3);
        for _ in 0..100 {
            sink.placed(placement());
        }
        for text in ["a", "b", "c"] {
            assert_eq!(hand_in(&sink, text), Ok(()));
        }
        assert_eq!(hand_in(&sink, "d"), Err(NotTaken::Full(piece("d"))));
        let end = End {
            outcome: Outcome::Finished { output_tokens: 3 },
            stop: Some(StopReason::Length),
            refused_by: None,
        };
        closing.end(end.clone());
        let mut next = || deliveries.try_next();
        for _ in 1..EXTRA {
            assert!(matches!(next(), Some(Delivery::Placed(it)) if it == placement()));
        }
        for text in ["a", "b", "c"] {
            assert!(matches!(next(), Some(Delivery::Text(it)) if it == piece(text)));
        }
        assert!(matches!(next(), Some(Delivery::End(it)) if it == end));
        assert!(next().is_none());
    }

    #[test]
    fn a_client_that_left_takes_nothing_and_stops_nobody() {
        let (sink, closing, deliveries) = channel(1);
        assert!(!sink.is_gone());
        drop(deliveries);
        assert!(sink.is_gone());
        assert_eq!(hand_in(&sink, "a"), Err(NotTaken::Gone));
        sink.placed(placement());
        closing.end(End {
            outcome: Outcome::Cancelled,
            stop: None,
            refused_by: None,
        });
    }
}

//! The response of another server, sent on as it comes.
//!
//! Its status and its bytes are the server's. A response that breaks off after its first byte can no
//! longer have another status: a stream of events ends with an event that has an `error`, anything else
//! with its connection. That event is named in streams of `/v1/messages`, whose clients pass over others.
//!
//! # Cancellation
//! A body that is dropped before its last byte cancels the request (`tests`).

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::{Body, Frame};
use pointsman_executor::relay::{RelayFrame, RelayedResponse, is_event_stream};
use pointsman_http::error::ApiError;
use serde_json::json;
use tokio::sync::mpsc;

use super::answer_names::UnnamedAnswer;
use super::inflow::Inflow;
use super::sse::Pace;

/// The body of a relayed response.
#[derive(Debug)]
pub(crate) struct RelayBody {
    // Owned.
    frames: mpsc::Receiver<RelayFrame>,
    inflow: Inflow,
    /// Absent: its frames are no tokens of an answer.
    pace: Option<Pace>,
    progress: Progress,
    form: Form,
    /// Absent: nobody asks for its id, or it was found.
    unnamed: Option<UnnamedAnswer>,
}

/// Progress of a [`RelayBody`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Flowing { frames: u32 },
    Over,
}

/// The form of a relayed body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Events(EventForm),
    Other,
}

/// The form of the events of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventForm {
    /// They have data alone, as those of chats and completions, or clients look for an `error` in the data.
    Unnamed,
    /// They have a name each, and an error is in an event of that name, as at `/v1/messages`.
    Named,
}

/// The last part of the path whose streams have [`EventForm::Named`].
const MESSAGES: &str = "messages";

/// The error of a body that broke off.
#[derive(Debug, thiserror::Error)]
#[error("the server elsewhere broke off: {0}")]
pub(crate) struct BrokenOff(String);

/// The status and headers of a response, and its body.
pub(super) fn begin(
    relayed: RelayedResponse,
    inflow: Inflow,
    (pace, unnamed): (Pace, Option<UnnamedAnswer>),
    events: EventForm,
) -> (StatusCode, HeaderMap, RelayBody) {
    let RelayedResponse {
        status,
        headers,
        frames,
    } = relayed;
    let form = if is_event_stream(&headers) {
        Form::Events(events)
    } else {
        Form::Other
    };
    // The frames of anything else are parts of one text, of which nobody knows where a token begins.
    let is_answered = matches!(form, Form::Events(_)) && status.is_success();
    let body = RelayBody {
        frames,
        inflow,
        pace: is_answered.then_some(pace),
        progress: Progress::Flowing { frames: 0 },
        form,
        unnamed,
    };
    (status, headers, body)
}

// === impl RelayBody ===

impl RelayBody {
    /// Notes a frame with bytes.
    fn count(&mut self, bytes: &Bytes) {
        if let Some(unnamed) = self.unnamed.take() {
            self.unnamed = unnamed.see(bytes);
        }
        if let Progress::Flowing { frames } = &mut self.progress
            && !bytes.is_empty()
        {
            *frames += 1;
            if let Some(pace) = &mut self.pace {
                pace.written(*frames);
            }
        }
    }

    /// The last frame of a response that broke off.
    fn broken(&mut self, why: String) -> Result<Frame<Bytes>, BrokenOff> {
        self.progress = Progress::Over;
        tracing::debug!(why, "a relayed response broke off");
        match self.form {
            Form::Other => Err(BrokenOff(why)),
            Form::Events(form) => {
                let (name, json) = form.error();
                // An event may have been cut in two: an empty line ends it.
                let event = [b"\n\n", name, b"data: ", &*json, b"\n\n"].concat();
                Ok(Frame::data(event.into()))
            }
        }
    }
}

// === impl EventForm ===

impl EventForm {
    /// The form of streams from this path.
    pub(super) fn of(path: &str) -> Self {
        match path.rsplit('/').next() {
            Some(MESSAGES) => Self::Named,
            _ => Self::Unnamed,
        }
    }

    /// The error of a stream that broke off: the line with its event's name, and its data.
    fn error(self) -> (&'static [u8], Vec<u8>) {
        let error = ApiError::BrokenOff;
        match self {
            Self::Unnamed => (b"", error.json()),
            Self::Named => {
                let error = json!({"type": "api_error", "message": error.to_string()});
                let data = json!({"type": "error", "error": error});
                (b"event: error\n", data.to_string().into_bytes())
            }
        }
    }
}

impl Body for RelayBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        if self.progress == Progress::Over {
            return Poll::Ready(None);
        }
        let frame = ready!(self.frames.poll_recv(cx));
        Poll::Ready(match frame {
            Some(RelayFrame::More(bytes)) => {
                self.count(&bytes);
                Some(Ok(Frame::data(bytes)))
            }
            Some(RelayFrame::Last(bytes)) => {
                self.count(&bytes);
                self.progress = Progress::Over;
                self.inflow.close();
                (!bytes.is_empty()).then(|| Ok(Frame::data(bytes)))
            }
            Some(RelayFrame::Broken(why)) => {
                // The executor tells the driver that it failed: nobody has left.
                self.inflow.close();
                Some(self.broken(why))
            }
            None => Some(self.broken("the host ended it".to_owned())),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.progress == Progress::Over
    }
}

impl Drop for RelayBody {
    /// Closes the request if all of its answer has come. Nobody has left it then: a connection reads no body behind a head
    /// that allows none, as that of an answer to `HEAD`, and nothing beyond the length that a head tells.
    fn drop(&mut self) {
        if let Ok(RelayFrame::Last(_)) = self.frames.try_recv() {
            self.inflow.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pointsman_driver::message::{Hints, Message, Submission, channels};
    use pointsman_events::PromptBlocks;
    use pointsman_executor::job::Job;

    use super::*;

    /// True if the driver hears that a client has left whose body is dropped while this frame waits.
    fn departs(waiting: Option<RelayFrame>) -> bool {
        let (driver, mut inbox) = channels(1);
        let submission = Submission {
            model: None,
            tenant: "default".to_owned(),
            job: Arc::new(Job::new(Vec::new(), 1)),
            prompt_blocks: PromptBlocks::default(),
            hints: Hints::default(),
            trace: None,
        };
        let (ticket, deliveries) = driver.submit(submission, None).unwrap();
        let (sender, frames) = mpsc::channel(1);
        if let Some(frame) = waiting {
            sender.try_send(frame).unwrap();
        }
        drop(RelayBody {
            frames,
            inflow: Inflow::new(ticket, deliveries, None),
            pace: None,
            progress: Progress::Flowing { frames: 0 },
            form: Form::Other,
            unnamed: None,
        });
        assert!(matches!(inbox.requests.try_recv(), Ok(Message::Submit(_))));
        matches!(inbox.requests.try_recv(), Ok(Message::Depart(_)))
    }

    #[test]
    fn a_body_that_is_dropped_cancels_the_request_unless_all_of_it_has_come() {
        assert!(departs(None));
        assert!(departs(Some(RelayFrame::More(Bytes::new()))));
        assert!(!departs(Some(RelayFrame::Last(Bytes::new()))));
    }
}

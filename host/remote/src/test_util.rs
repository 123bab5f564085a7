//! Helpers of tests in which the clock stands still but for `advance`.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method};
use pointsman_events::RequestId;
use pointsman_executor::contract::{Command, Events};
use pointsman_executor::delivery::{self, Closing, Deliveries};
use pointsman_executor::handle::EngineHandle;
use pointsman_executor::job::{Job, JobState};
use pointsman_executor::relay::{RemoteCall, Rooms};
use pointsman_executor::server::ServerConfig;
use pointsman_executor::test_util::{EXECUTOR, FIRST_LIFE, reference, start};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::yield_now;

use crate::client::{Connections, Trust};
use crate::executor::{RemoteSpec, spawn};

/// Turns of the others within which whoever needs no time is done.
const TURNS: u32 = 1000;

/// Keeps the clock from going on by itself, as it does where nobody has anything to do.
pub(crate) async fn hold_clock() {
    loop {
        yield_now().await;
    }
}

/// Lets everybody go on who needs no time.
pub(crate) async fn settle() {
    for _ in 0..TURNS {
        yield_now().await;
    }
}

/// The start of a request for a stream that is passed on, and the client's end of it.
pub(crate) fn passed_on(request: RequestId) -> (Command, (Closing, Deliveries)) {
    let call = RemoteCall {
        method: Method::POST,
        path: "/v1/chat/completions".to_owned(),
        headers: HeaderMap::new(),
        body: Bytes::from_static(br#"{"stream":true}"#),
        model: None,
        prompt_tokens: 1,
        rooms: Rooms::default(),
    };
    let job = Job {
        call: Some(Arc::new(call)),
        ..Job::new(vec![1], 8)
    };
    let (sink, closing, deliveries) = delivery::channel(8);
    let state = JobState::new(Arc::new(job), sink);
    let start = start(reference(request), state, Vec::new());
    (Command::Start(Box::new(start)), (closing, deliveries))
}

/// Starts the executor of a server. Returns what the executor reports, too.
pub(crate) fn started(server: ServerConfig) -> (EngineHandle, mpsc::Receiver<Events>) {
    let (sender, events) = mpsc::channel(16);
    let spec = RemoteSpec {
        executor: EXECUTOR,
        incarnation: FIRST_LIFE,
        server,
        models_max: None,
        connections: Connections::trusting(Trust::Nobody).expect("nobody is trusted"),
        events: sender,
    };
    (spawn(&Handle::current(), spec), events)
}

//! Tests of rounds in which a server takes connections and answers nothing.

use pointsman_events::{Availability, RequestId};
use pointsman_executor::contract::{Command, Event, Events, ServerChange};
use pointsman_executor::delivery::{Closing, Deliveries};
use pointsman_executor::handle::EngineHandle;
use pointsman_executor::test_util::reference;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::advance;

use super::*;
use crate::asker::{LATE_MAX, PATIENCE};
use crate::test_util::{hold_clock, passed_on, started};

/// The only request.
const REQUEST: RequestId = RequestId(1);

/// An executor whose server says nothing.
struct Mute {
    listener: TcpListener,
    /// The connections to the server, which stay open.
    open: Vec<TcpStream>,
    executor: EngineHandle,
    events: mpsc::Receiver<Events>,
    /// The client's end of the request.
    clients: Vec<(Closing, Deliveries)>,
}

/// The availability of which these events tell, and of nothing else.
fn availability(told: &[Event]) -> Option<Availability> {
    match told {
        [Event::Changed(ServerChange::Availability(availability))] => Some(*availability),
        _ => None,
    }
}

impl Mute {
    /// Starts the executor, whose server has been asked the first question of a round.
    async fn start() -> Self {
        tokio::spawn(hold_clock());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut server = ServerConfig::new(url.parse().unwrap());
        server.poll = Duration::ZERO;
        let (executor, events) = started(server);
        let mut mute = Self {
            listener,
            open: Vec::new(),
            executor,
            events,
            clients: Vec::new(),
        };
        mute.hears().await;
        mute
    }

    /// Waits until the server is sent something more.
    async fn hears(&mut self) {
        let (stream, _) = self.listener.accept().await.unwrap();
        stream.readable().await.unwrap();
        self.open.push(stream);
    }

    /// Lets all answers of a round be late whose first question was asked.
    async fn is_late(&mut self) {
        let late = PATIENCE + Duration::from_millis(1);
        for _ in 1..LATE_MAX {
            advance(late).await;
            self.hears().await;
        }
        advance(late).await;
    }

    async fn told(&mut self) -> Vec<Event> {
        self.events.recv().await.unwrap().list
    }

    /// Has the request start, and arrive at the server.
    async fn begins(&mut self) {
        let (start, client) = passed_on(REQUEST);
        self.clients.push(client);
        self.orders(start).await;
        let told = self.told().await;
        assert!(matches!(&*told, [Event::Started(_)]), "{told:?}");
        self.hears().await;
    }

    /// Has the request's client leave.
    async fn ends(&mut self) {
        self.orders(Command::Cancel(reference(REQUEST))).await;
        let told = self.told().await;
        assert!(matches!(&*told, [Event::Left { .. }]), "{told:?}");
    }

    async fn orders(&self, command: Command) {
        self.executor.commands.send(command).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_late_is_busy_where_requests_came_while_it_was_asked() {
    let mut mute = Mute::start().await;
    mute.begins().await;
    mute.is_late().await;
    let told = mute.told().await;
    assert_eq!(availability(&told), Some(Availability::Busy), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_late_is_silent_where_requests_went_while_it_was_asked() {
    let mut mute = Mute::start().await;
    mute.begins().await;
    mute.is_late().await;
    let told = mute.told().await;
    assert_eq!(availability(&told), Some(Availability::Busy), "{told:?}");
    mute.hears().await;
    mute.ends().await;
    mute.is_late().await;
    let told = mute.told().await;
    assert_eq!(availability(&told), Some(Availability::Silent), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stays_late_is_not_reported_as_heard() {
    let mut mute = Mute::start().await;
    mute.begins().await;
    mute.is_late().await;
    assert_eq!(mute.told().await.len(), 1);
    mute.hears().await;
    mute.is_late().await;
    // The round is over, and the next one has begun.
    mute.hears().await;
    let told = mute.events.try_recv();
    assert!(told.is_err(), "{told:?}");
}

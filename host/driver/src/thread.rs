//! The thread that runs a [`Driver`]: waits, gathers the messages that have arrived, settles.
//!
//! A turn takes all that has arrived, up to a bound per channel, and decides once for all of it:
//! the busier the host, the larger its batches and the fewer its rounds.
//!
//! # Bounds
//! Every channel is bounded. Executors and clients may wait for the driver, never the driver for
//! them.

use std::io;
use std::ops::ControlFlow;
use std::thread::JoinHandle;
use std::time::Duration;

use pointsman_core::Micros;
use pointsman_executor::contract::Events;
use tokio::sync::mpsc;

use super::message::{Control, Inbox, Message};
use super::{Driver, Settled};
use crate::clock::SystemClock;

/// The most messages of one kind in one turn.
const TURN_MAX: usize = 1024;

/// Runs `driver` on a thread of its own until it is told to stop.
///
/// # Errors
/// If the thread cannot be made.
pub fn spawn(
    driver: Driver,
    clock: SystemClock,
    inbox: Inbox,
    events: mpsc::Receiver<Events>,
) -> io::Result<JoinHandle<()>> {
    let driver_loop = DriverLoop {
        driver,
        clock,
        inbox,
        events,
    };
    // One thread, one task: the runtime is there for its timer and to wait for several channels.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    std::thread::Builder::new()
        .name("driver".to_owned())
        .spawn(move || runtime.block_on(driver_loop.run()))
}

struct DriverLoop {
    driver: Driver,
    clock: SystemClock,
    inbox: Inbox,
    events: mpsc::Receiver<Events>,
}

impl DriverLoop {
    async fn run(mut self) {
        let mut settled = self.settle();
        while self.gather(settled).await.is_continue() {
            settled = self.settle();
        }
        self.driver.abandon(self.clock.now());
    }

    fn settle(&mut self) -> Settled {
        let begun = self.clock.now();
        let settled = self.driver.settle(begun);
        self.driver.settled_in(pause(begun, self.clock.now()));
        settled
    }

    /// Takes in the messages of a turn.
    async fn gather(&mut self, settled: Settled) -> ControlFlow<()> {
        self.wait(settled).await?;
        self.take_waiting()
    }

    /// Waits for the first message, or until the time at which a turn is due.
    ///
    /// Biased: the order matters only within a turn, and a turn takes messages of every kind.
    async fn wait(&mut self, settled: Settled) -> ControlFlow<()> {
        let pause = match settled {
            Settled::MoreDue => Some(Duration::ZERO),
            Settled::Until(at) => at.map(|at| pause(self.clock.now(), at)),
        };
        tokio::select! {
            biased;
            Some(events) = self.events.recv() => {
                self.driver.events(self.clock.now(), events);
                ControlFlow::Continue(())
            }
            Some(control) = self.inbox.control.recv() => self.control(control),
            message = self.inbox.requests.recv() => match message {
                Some(message) => {
                    self.message(message);
                    ControlFlow::Continue(())
                }
                // Nobody is left who could ask for anything.
                None => ControlFlow::Break(()),
            },
            () = sleep(pause) => ControlFlow::Continue(()),
        }
    }

    /// Takes in the other messages that have arrived.
    fn take_waiting(&mut self) -> ControlFlow<()> {
        for _ in 0..TURN_MAX {
            let Ok(events) = self.events.try_recv() else {
                break;
            };
            self.driver.events(self.clock.now(), events);
        }
        for _ in 0..TURN_MAX {
            let Ok(message) = self.inbox.requests.try_recv() else {
                break;
            };
            self.message(message);
        }
        while let Ok(control) = self.inbox.control.try_recv() {
            self.control(control)?;
        }
        ControlFlow::Continue(())
    }

    fn message(&mut self, message: Message) {
        let now = self.clock.now();
        match message {
            Message::Submit(submitted) => self.driver.submit(now, *submitted),
            Message::Depart(ticket) => self.driver.depart(now, ticket),
            Message::Answered(answer) => self.driver.answered(now, &answer),
        }
    }

    /// Carries out `control`. An answer that nobody waits for any more is dropped.
    fn control(&mut self, control: Control) -> ControlFlow<()> {
        let now = self.clock.now();
        match control {
            Control::Handover(policy, answer) => {
                drop(answer.send(self.driver.handover(now, policy)));
            }
            Control::Brief(needs, answer) => drop(answer.send(self.driver.brief(now, needs))),
            Control::Commit(commit, answer) => {
                let mut committed = self.driver.commit(now, commit);
                if let Ok(committed) = &mut committed {
                    committed.pause = self.clock.now().since(now);
                }
                drop(answer.send(committed));
            }
            Control::Policies(answer) => {
                drop(answer.send(self.driver.policies().status().collect()));
            }
            Control::Load(answer) => drop(answer.send(self.driver.load())),
            Control::Operator(operator) => self.driver.operate(now, operator),
            Control::Stop => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }
}

fn pause(now: Micros, at: Micros) -> Duration {
    Duration::from_micros(at.since(now).0)
}

async fn sleep(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}

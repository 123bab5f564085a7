//! The service manager that started the server, such as systemd: it is told what the server is at, and that the driver
//! still answers.
//!
//! Where there is no `NOTIFY_SOCKET`, nobody is told anything. `sd-notify` reads the variables of the protocol, and
//! nothing else does.
//!
//! # Invariants
//! 1. A driver that hangs ends the signs of life (`signs_of_life_end_with_the_answers_of_the_driver`, below).

use std::time::Duration;

use pointsman_driver::message::DriverHandle;
use sd_notify::NotifyState;
use tokio::task;
use tokio::time::{self, MissedTickBehavior};
use tracing::{info, warn};

/// Signs of life in the time within which the manager wants one.
const SIGNS: u32 = 3;

/// Tells that the server serves at `url`.
pub(crate) fn ready(url: &str) {
    let status = format!("serving on {url}");
    tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// Tells that the server reads its configuration again; [`ready`] ends that.
pub(crate) fn reloading() {
    let now = NotifyState::monotonic_usec_now();
    match now {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => warn!(%error, "service manager not told of a reload"),
    }
}

/// Tells that the server stops, and takes no longer than `longest`.
pub(crate) fn stopping(longest: Duration) {
    let micros = u32::try_from(longest.as_micros()).unwrap_or(u32::MAX);
    let status = NotifyState::Status("stopping: what is in hand goes on");
    let longest = NotifyState::ExtendTimeoutUsec(micros);
    tell(&[NotifyState::Stopping, status, longest]);
}

/// Gives signs of life, if the manager wants them, until the driver has ended.
pub(crate) async fn keep_alive(driver: DriverHandle) {
    let pause = sd_notify::watchdog_enabled().map(|within| within / SIGNS);
    let Some(pause) = pause.filter(|pause| !pause.is_zero()) else {
        return;
    };
    info!(
        every_ms = pause.as_millis(),
        "the service manager is given signs of life"
    );
    give_signs(driver, pause, || tell(&[NotifyState::Watchdog])).await;
}

/// Calls `sign` on a thread that may wait, each time that the driver has answered: at once, and every `pause`.
async fn give_signs(driver: DriverHandle, pause: Duration, sign: fn()) {
    let mut times = time::interval(pause);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        times.tick().await;
        if driver.load().await.is_none() {
            return;
        }
        if let Err(error) = task::spawn_blocking(sign).await {
            warn!(%error, "no sign of life was given");
        }
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!(%error, "service manager not told");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use pointsman_driver::message::{Control, Inbox, Load, channels};

    use super::*;

    static SIGNS_GIVEN: AtomicU32 = AtomicU32::new(0);

    fn count() {
        SIGNS_GIVEN.fetch_add(1, Ordering::Relaxed);
    }

    /// A driver that answers three times, and then takes the next question without an answer.
    async fn hangs_at_last(mut inbox: Inbox) -> Control {
        for _ in 0..3 {
            let Some(Control::Load(answer)) = inbox.control.recv().await else {
                panic!("asked something else");
            };
            answer.send(Load::default()).unwrap();
        }
        inbox.control.recv().await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn signs_of_life_end_with_the_answers_of_the_driver() {
        let (driver, inbox) = channels(1);
        let signs = task::spawn(give_signs(driver, Duration::from_secs(1), count));
        let unanswered = hangs_at_last(inbox).await;
        // Ten signs would have been due by now.
        time::sleep(Duration::from_secs(10)).await;
        assert_eq!(SIGNS_GIVEN.load(Ordering::Relaxed), 3);
        assert!(!signs.is_finished());
        // A driver that has ended needs no signs any more.
        drop(unanswered);
        signs.await.unwrap();
        assert_eq!(SIGNS_GIVEN.load(Ordering::Relaxed), 3);
    }
}

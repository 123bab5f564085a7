//! The engine's thread: its ends, and its next life after a failure of the device.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pointsman_engine::backend::{Backend, DeviceError};
use pointsman_engine::thread::{BackendMaker, Recovery};
use pointsman_events::{BlockId, Incarnation, RequestId, SequenceRef};
use pointsman_executor::contract::{Command, Event};
use pointsman_executor::delivery::{self, Deliveries};
use pointsman_executor::handle::{Ended, EngineWork};
use pointsman_executor::job::{Job, JobState};
use pointsman_executor::test_util::{self, TestHost, job, reference};

use pointsman_engine::test_util::scripted::{Faults, SHAPE, ScriptedBackend, StepFault};
use pointsman_engine::test_util::subjects::{Threaded, scripted};

/// A maker of backends on a device that another engine loses.
struct OnSharedDevice {
    is_lost: Arc<AtomicBool>,
}

impl BackendMaker for OnSharedDevice {
    fn make(&mut self) -> Result<Box<dyn Backend>, DeviceError> {
        Ok(scripted())
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn check_device(&self) -> Result<(), DeviceError> {
        match self.is_lost.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(DeviceError("another has lost it".to_owned())),
        }
    }
}

/// Waits for the end of an engine's thread.
fn ended(work: EngineWork) -> Ended {
    match work {
        EngineWork::Thread(thread) => thread.join().unwrap(),
        EngineWork::Task => panic!("an engine has a thread"),
    }
}

/// Starts an engine whose backends fail as `faults` says.
fn failing(faults: &[(u32, StepFault)]) -> Threaded {
    let faults = Faults::after(faults);
    let make = move || {
        let backend = ScriptedBackend::failing(SHAPE, faults.clone());
        Ok(Box::new(backend) as _)
    };
    Threaded::with_factories(vec![Box::new(make)], &[scripted])
}

fn start(request: u64, incarnation: u32) -> (Command, Deliveries) {
    let job = Job {
        ignore_eos: true,
        ..job(&[30, 31, 32], 10)
    };
    let (sink, _closing, deliveries) = delivery::channel(job.output_tokens_max);
    let sequence = JobState::new(Arc::new(job), sink);
    let name = SequenceRef {
        incarnation: Incarnation(incarnation),
        ..reference(RequestId(request))
    };
    let start = test_util::start(name, sequence, (0..4).map(BlockId).collect());
    (Command::Start(Box::new(start)), deliveries)
}

/// Takes events up to the next loss; with the incarnation of the last of them.
fn hear_until_lost(engine: &mut Threaded) -> (u32, Vec<Event>) {
    let mut heard = Vec::new();
    loop {
        let events = engine.events.blocking_recv().unwrap();
        heard.extend(events.list);
        if matches!(heard.last(), Some(Event::Lost { .. })) {
            return (events.incarnation.0, heard);
        }
    }
}

fn why(heard: &[Event]) -> &str {
    match heard.last() {
        Some(Event::Lost { why }) => why,
        _ => panic!("{heard:?}"),
    }
}

#[test]
fn a_panic_loses_what_ran_and_the_next_life_serves() {
    let mut engine = failing(&[(4, StepFault::Panic)]);
    let (command, _deliveries) = start(1, 0);
    engine.handle.commands.try_send(command).unwrap();
    let (incarnation, heard) = hear_until_lost(&mut engine);
    assert_eq!(incarnation, 0);
    assert_eq!(why(&heard), "panicked: the kernel met a NaN");
    let steps = heard.iter().filter(|e| matches!(e, Event::Stepped(_)));
    assert_eq!(steps.count(), 3);

    // A command for the life before has no effect and no answer.
    let (late, _deliveries) = start(2, 0);
    engine.handle.commands.try_send(late).unwrap();
    let (command, _deliveries) = start(3, 1);
    engine.handle.commands.try_send(command).unwrap();
    let mut heard = Vec::new();
    while !matches!(heard.last(), Some(Event::Finished { .. })) {
        let events = engine.events.blocking_recv().unwrap();
        assert_eq!(events.incarnation, Incarnation(1));
        heard.extend(events.list);
    }
    let expected = SequenceRef {
        incarnation: Incarnation(1),
        ..reference(RequestId(3))
    };
    let about = heard.iter().filter_map(|event| match event {
        Event::Started(sequence) | Event::Finished { sequence, .. } => Some(*sequence),
        Event::Stepped(_)
        | Event::PromptCounted(..)
        | Event::Answered(..)
        | Event::Failed { .. }
        | Event::Left { .. }
        | Event::Lost { .. }
        | Event::Changed(_) => None,
    });
    assert_eq!(about.collect::<Vec<_>>(), [expected; 2]);
    assert_eq!(engine.handle.stats.losses.get(), 1);
}

#[test]
fn a_device_that_fails_is_lost_with_its_reason() {
    let mut engine = failing(&[(1, StepFault::Error)]);
    let (command, _deliveries) = start(1, 0);
    engine.handle.commands.try_send(command).unwrap();
    let (_, heard) = hear_until_lost(&mut engine);
    assert_eq!(why(&heard), "the device fell off the bus");
}

#[test]
fn a_device_that_keeps_failing_is_given_up() {
    let losses_max = Recovery::default().losses_max;
    let mut engine = failing(&vec![(1, StepFault::Error); losses_max as usize]);
    for incarnation in 0..losses_max {
        let (command, _deliveries) = start(1, incarnation);
        engine.handle.commands.try_send(command).unwrap();
        let (lost, heard) = hear_until_lost(&mut engine);
        assert_eq!(lost, incarnation);
        let last = incarnation + 1 == losses_max;
        assert_eq!(why(&heard).contains("given up after 5 losses"), last);
        assert_eq!(engine.handle.commands.is_closed(), last);
    }
    let ended = ended(engine.handle.work);
    assert!(matches!(ended, Ended::GaveUp(why) if why.contains("fell off the bus")));
}

#[test]
fn a_step_between_losses_forgives_them() {
    let losses = Recovery::default().losses_max * 3;
    let mut engine = failing(&vec![(2, StepFault::Error); losses as usize]);
    for incarnation in 0..losses {
        let (command, _deliveries) = start(1, incarnation);
        engine.handle.commands.try_send(command).unwrap();
        hear_until_lost(&mut engine);
    }
    drop(engine.handle.commands);
    assert_eq!(ended(engine.handle.work), Ended::Closed);
}

#[test]
fn a_backend_that_cannot_be_made_is_a_loss_like_any_other() {
    let mut tries = 0;
    let make = move || {
        tries += 1;
        match tries {
            1 => Err(DeviceError("out of memory".to_owned())),
            _ => Ok(scripted()),
        }
    };
    let mut engine = Threaded::with_factories(vec![Box::new(make)], &[scripted]);
    let (_, heard) = hear_until_lost(&mut engine);
    assert_eq!(why(&heard), "out of memory");
    let (command, _deliveries) = start(1, 1);
    engine.handle.commands.try_send(command).unwrap();
    let events = engine.events.blocking_recv().unwrap();
    assert!(matches!(events.list[..], [Event::Started(_)]));
}

#[test]
fn an_idle_engine_lets_go_of_a_device_that_another_has_lost_and_is_not_given_up() {
    let is_lost = Arc::new(AtomicBool::new(false));
    let maker = OnSharedDevice {
        is_lost: Arc::clone(&is_lost),
    };
    let mut engine = Threaded::with_factories(vec![Box::new(maker)], &[scripted]);
    let (command, _deliveries) = start(1, 0);
    engine.handle.commands.try_send(command).unwrap();
    let mut heard = Vec::new();
    while !matches!(heard.last(), Some(Event::Finished { .. })) {
        heard.extend(engine.events.blocking_recv().unwrap().list);
    }
    // It has begun, and has nothing to do any more.
    is_lost.store(true, Ordering::Relaxed);
    let mut incarnation = 0;
    while incarnation < Recovery::default().losses_max + 2 {
        let (lost, heard) = hear_until_lost(&mut engine);
        assert_eq!((lost, why(&heard)), (incarnation, "another has lost it"));
        incarnation += 1;
    }
    is_lost.store(false, Ordering::Relaxed);
    // Some further losses may be on their way.
    let mut kept = Vec::new();
    loop {
        let (command, deliveries) = start(2, incarnation);
        engine.handle.commands.try_send(command).unwrap();
        kept.push(deliveries);
        let events = engine.events.blocking_recv().unwrap();
        if matches!(events.list[..], [Event::Started(_)]) {
            break;
        }
        assert_eq!(events.incarnation, Incarnation(incarnation));
        incarnation += 1;
    }
    drop(engine.handle.commands);
    drop(engine.events);
    assert_eq!(ended(engine.handle.work), Ended::Closed);
}

#[test]
fn an_engine_ends_when_its_driver_lets_go() {
    let idle = Threaded::new(&[scripted]);
    drop(idle.handle.commands);
    assert_eq!(ended(idle.handle.work), Ended::Closed);

    let mut busy = TestHost::new(Threaded::new(&[scripted]));
    busy.start(job(&[30, 31], 40));
    busy.turn();
    drop(busy.executor.handle.commands);
    drop(busy.executor.events);
    assert_eq!(ended(busy.executor.handle.work), Ended::Closed);
}

#[test]
fn an_engine_whose_sequences_all_lack_a_block_waits_and_counts_it() {
    let mut host = TestHost::new(Threaded::new(&[scripted]));
    let request = host.start(Job {
        ignore_eos: true,
        ..job(&[30, 31, 32, 33], 3)
    });
    while host.owes_events() {
        host.turn();
    }
    host.run_out();
    assert!(host.is_finished(request));
    let stats = &host.executor.handle.stats;
    assert_eq!(stats.steps.get(), 3);
    assert!(stats.waiting_nanos.get() > 0);
    assert!(stats.busy_nanos.get() > 0);
}

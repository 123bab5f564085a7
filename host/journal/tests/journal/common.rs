//! Fixtures: entries of every kind, and a store in memory.

#![expect(
    clippy::too_many_lines,
    clippy::panic_in_result_fn,
    reason = "lists of everything are long; a store that is misused is a failed test"
)]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use pointsman_events::rows::{ExecutorKind, Health, NameKind, RequestClass};
use pointsman_events::{
    Allotment, Allotments, Answer, Arrangement, Author, BlockHash, BlockKind, Clock, Decided,
    DeviceId, EvictHow, Eviction, ExecutorId, ExecutorSpec, ExecutorUpdate, ExpiredWhy, Fact,
    FailedWhy, FaultKind, Hook, Incarnation, Input, Kept, KvReport, LabelId, Micros, ModelId,
    Needs, NewRequest, Otherwise, Outcome, PlacedIn, PolicyFault, PrefixEvent, Progress,
    PromptBlocks, PromptCount, RefusalCause, RefusedWhy, Reply, RequestId, RequeuedWhy, RetryClass,
    Round, RowKind, RowKinds, SequenceRef, SessionKey, ShortageCause, Stamped, Stay, StepReport,
    TenantId, Tier, Victim, admission, fixture, routing,
};
use pointsman_journal::{
    Blob, Bound, Briefed, Chain, Component, ContentHash, Decision, Entry, Gap, Header, Keyframe,
    PolicyEventEntry, PolicyRecord, Restarted, Roster, RunInfo, Saved, Store, StoredComponent,
    StoredFile,
};

pub(crate) type Files = Arc<Mutex<BTreeMap<u32, Vec<u8>>>>;

/// A store that keeps files in memory.
#[derive(Clone, Default)]
pub(crate) struct Memory {
    pub(crate) files: Files,
    /// Blocks every write until its sender is dropped.
    pub(crate) gate: Option<Arc<Mutex<Receiver<()>>>>,
    /// Bytes that may be written before the disk is full.
    pub(crate) room: Option<Arc<Mutex<usize>>>,
}

struct MemoryFile {
    number: u32,
    memory: Memory,
}

impl Memory {
    /// Makes a store whose writes block until the returned sender is dropped.
    pub(crate) fn gated() -> (Self, Sender<()>) {
        let (word, gate) = channel();
        let memory = Self {
            gate: Some(Arc::new(Mutex::new(gate))),
            ..Self::default()
        };
        (memory, word)
    }

    pub(crate) fn file(&self, number: u32) -> Vec<u8> {
        self.files.lock().unwrap()[&number].clone()
    }

    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.files.lock().unwrap().keys().copied().collect()
    }
}

impl Store for Memory {
    fn files(&mut self) -> io::Result<Vec<StoredFile>> {
        let files = self.files.lock().unwrap();
        let files = files.iter().map(|(number, bytes)| StoredFile {
            number: *number,
            bytes: bytes.len() as u64,
            modified: SystemTime::UNIX_EPOCH,
        });
        Ok(files.collect())
    }

    fn create(&mut self, number: u32) -> io::Result<Box<dyn Write + Send>> {
        let earlier = self.files.lock().unwrap().insert(number, Vec::new());
        assert_eq!(earlier, None, "a file is never overwritten");
        let memory = self.clone();
        Ok(Box::new(MemoryFile { number, memory }))
    }

    fn remove(&mut self, number: u32) -> io::Result<()> {
        self.files.lock().unwrap().remove(&number);
        Ok(())
    }

    fn components(&mut self) -> io::Result<Vec<StoredComponent>> {
        Ok(Vec::new())
    }

    fn keep_component(&mut self, component: &Component, _: u32) -> io::Result<u64> {
        panic!("{component:?} is not for a store in memory")
    }

    fn remove_component(&mut self, component: &StoredComponent) -> io::Result<()> {
        panic!("{component:?} was never stored")
    }
}

impl Write for MemoryFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(gate) = &self.memory.gate {
            assert!(gate.lock().unwrap().recv().is_err(), "nothing is sent");
        }
        let mut taken = bytes.len();
        if let Some(room) = &self.memory.room {
            let mut room = room.lock().unwrap();
            taken = taken.min(*room);
            *room -= taken;
            if taken == 0 && !bytes.is_empty() {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
        }
        let mut files = self.memory.files.lock().unwrap();
        let file = files.get_mut(&self.number).expect("it was created");
        file.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn run_info() -> RunInfo {
    RunInfo {
        pointsman: "0.1.0".to_owned(),
        wasmtime: "48.0.8".to_owned(),
        started_unix_ms: 1_700_000_000_000,
    }
}

pub(crate) fn keyframe(round: u64) -> Keyframe {
    Keyframe {
        now: Micros(1000 * round),
        round: Round(round),
        machine: Blob(vec![7; 100]),
        roster: Roster::default(),
    }
}

/// A small entry that tests can recognise by its number.
pub(crate) fn numbered(n: u64) -> Entry<'static> {
    Entry::Round {
        now: Micros(n),
        round: Round(n),
    }
}

/// One entry of each kind, and in them one of each kind of input, reply and fact.
pub(crate) fn everything() -> Vec<Entry<'static>> {
    let mut entries = vec![
        Entry::Header(Header {
            pointsman: "0.1.0".to_owned(),
            wasmtime: "48.0.8".to_owned(),
            // The header of another run, so that the reader reports no missing file of this run.
            started_unix_ms: 1_700_000_000_001,
            file: 3,
        }),
        Entry::Keyframe(Box::new(Keyframe {
            roster: roster(),
            ..keyframe(5)
        })),
        numbered(17),
        Entry::Bound(Bound {
            now: Micros(18),
            roster: roster(),
        }),
        Entry::Gap(Gap { dropped: 1 << 40 }),
        Entry::Briefed(Briefed {
            now: Micros(19),
            needs: Needs::every(RowKinds::from_iter([RowKind::Waiting, RowKind::Completion])),
            told: 300,
        }),
        Entry::Restarted(Restarted {
            policy: 4,
            generation: 2,
            state: Some(Blob(vec![1, 2, 3])),
        }),
        Entry::Saved(Saved {
            now: Micros(20),
            policy: 4,
            bytes: 3,
            crc32: 0xdead_beef,
        }),
        Entry::PolicyEvent(PolicyEventEntry {
            now: Micros(21),
            policy: 4,
            what: "quarantined".to_owned(),
            detail: "5 faults".to_owned(),
        }),
    ];
    entries.extend(inputs().into_iter().map(|input| Entry::Input {
        now: Micros(22),
        input: Cow::Owned(input),
    }));
    entries.extend(decisions().into_iter().map(Entry::Decision));
    entries.extend(facts().into_iter().map(|fact| {
        Entry::Fact(Cow::Owned(Stamped {
            now: Micros(23),
            round: Round(9),
            fact,
        }))
    }));
    entries
}

pub(crate) fn roster() -> Roster {
    Roster {
        policies: vec![PolicyRecord {
            number: 4,
            name: "memory-aware".to_owned(),
            version: "1.2.3".to_owned(),
            reasons: vec!["warm".to_owned(), "least-loaded".to_owned()],
            digest: ContentHash([0xab; 32]),
            fingerprint: ContentHash([0xcd; 32]),
            settings: "{\"share\":3}".to_owned(),
            limits: "{}".to_owned(),
            generation: 2,
            code: Some(Blob(b"\0asm".to_vec())),
            state: Some(Blob(vec![9; 5])),
            saves: true,
            told: Some(77),
        }],
        chains: vec![Chain {
            hook: Hook::Routing,
            policies: vec![4, 2],
        }],
    }
}

fn sequence() -> SequenceRef {
    SequenceRef {
        request: RequestId(300),
        executor: ExecutorId(1),
        incarnation: Incarnation(2),
    }
}

fn inputs() -> Vec<Input> {
    let kind = BlockKind {
        model: Some(ModelId(1)),
        adapter: None,
        tokens_per_block: 16,
    };
    let mut request = NewRequest::new(TenantId(2), 100, 20);
    request.model = Some(ModelId(1));
    request.session = Some(SessionKey(u64::MAX));
    request.class = RequestClass::Throughput;
    request.priority = -3;
    request.labels = vec![LabelId(0)];
    request.deadline = Some(Micros(5_000_000));
    request.prompt_blocks = PromptBlocks {
        tokens_per_block: 16,
        hashes: vec![BlockHash(u128::MAX), BlockHash(1)],
    };
    request.allowed = Some(vec![ExecutorId(1)]);
    let executor = ExecutorSpec {
        kind: ExecutorKind::Cpu,
        serves: Some(vec![ModelId(0)]),
        ..fixture::executor_spec("cpu0/demo", DeviceId(0))
    };
    vec![
        Input::NameInterned {
            kind: NameKind::Tenant,
            text: "größe".to_owned(),
        },
        Input::ModelLimitSet(ModelId(1), Some(3)),
        Input::TenantSet(TenantId(1), 2, None),
        Input::DeviceAttached(fixture::device_spec("cpu0")),
        Input::KvReported(
            DeviceId(0),
            KvReport {
                block_bytes: 1,
                blocks_total: 2,
                blocks_free: 3,
                blocks_cached: 4,
                blocks_evicted_total: 5,
            },
        ),
        Input::PrefixesReported(Tier::Shared, PrefixEvent::Stored(kind, vec![BlockHash(7)])),
        Input::ExecutorAttached(executor),
        Input::ExecutorUpdated(ExecutorId(1), ExecutorUpdate::Health(Health::Draining)),
        Input::ExecutorUpdated(
            ExecutorId(1),
            ExecutorUpdate::Loaded(Some(vec![ModelId(2), ModelId(300)])),
        ),
        Input::ExecutorLost {
            executor: ExecutorId(1),
            incarnation: Incarnation(2),
            kept: vec![Kept {
                request: RequestId(7),
                generated: 3,
            }],
        },
        Input::RequestArrived(Box::new(request)),
        Input::RequestCancelled(RequestId(300)),
        Input::SequenceStarted(sequence()),
        Input::StepFinished(StepReport {
            executor: ExecutorId(1),
            incarnation: Incarnation(2),
            progress: vec![Progress {
                request: RequestId(300),
                prefilled: 16,
                generated: 1,
            }],
        }),
        Input::SequenceFinished(sequence()),
        Input::SequenceFailed {
            sequence: sequence(),
            retry: RetryClass::Elsewhere,
            kept: 3,
        },
        Input::SequenceLeft(sequence(), 40),
        Input::TimePassed,
        Input::TokensPerStepSet(DeviceId(0), 64),
        Input::PromptCounted(
            sequence(),
            PromptCount {
                tokens: 40,
                cached: 16,
            },
        ),
        Input::KeptTo(sequence(), vec![ExecutorId(0), ExecutorId(200)]),
        Input::PolicyChanged(Hook::Budget),
    ]
}

fn arrangement() -> Arrangement {
    Arrangement {
        prefill_max: Some(128),
        first: vec![RequestId(300), RequestId(1)],
    }
}

fn decisions() -> Vec<Decision<'static>> {
    let replies = vec![
        Reply::Admission(vec![
            admission::Verdict {
                choice: admission::Choice::Admit,
                reason: 1,
            },
            admission::Verdict {
                choice: admission::Choice::Shed(30),
                reason: 2,
            },
            admission::Verdict {
                choice: admission::Choice::Displace(admission::Displacement {
                    request: RequestId(4),
                    retry_after: 7,
                }),
                reason: 3,
            },
            admission::Verdict {
                choice: admission::Choice::Park,
                reason: 4,
            },
        ]),
        Reply::Priority(vec![RequestId(2), RequestId(1)]),
        Reply::Routing(vec![
            routing::Verdict {
                choice: routing::Choice::Place(vec![ExecutorId(1), ExecutorId(0)]),
                reason: 1,
            },
            routing::Verdict {
                choice: routing::Choice::Hold(Some(Micros(99))),
                reason: 2,
            },
            routing::Verdict {
                choice: routing::Choice::GiveUp,
                reason: 3,
            },
        ]),
        Reply::Preemption(Some(Eviction {
            executor: ExecutorId(1),
            victims: vec![Victim {
                request: RequestId(8),
                how: EvictHow::Swap,
            }],
            reason: 5,
        })),
        Reply::Budget(Allotments {
            engines: vec![Allotment {
                executor: ExecutorId(1),
                tokens_max: 64,
            }],
            again: Some(Micros(77)),
        }),
        Reply::Arrangement(arrangement()),
    ];
    let hooks = Hook::ALL.into_iter().chain([Hook::Budget]);
    let answered = hooks.zip(replies);
    let answered = answered.map(|(hook, reply)| Decision {
        hook,
        requests: Cow::Owned(vec![RequestId(1), RequestId(300)]),
        answer: Cow::Owned(Answer::by(4, reply)),
        generation: 2,
        fuel: 12_345,
    });
    let faults = [
        FaultKind::Trap,
        FaultKind::Fuel,
        FaultKind::Deadline,
        FaultKind::Memory,
        FaultKind::Oversize,
        FaultKind::Start,
        FaultKind::Struck,
    ];
    let faults = faults.map(|kind| PolicyFault {
        policy: 4,
        kind,
        detail: "why".to_owned(),
    });
    let faulted = Decision {
        hook: Hook::Admission,
        requests: Cow::Owned(vec![RequestId(1)]),
        answer: Cow::Owned(Answer {
            author: Author::BuiltIn,
            value: None,
            faults: faults.to_vec(),
            otherwise: Otherwise::Closed,
        }),
        generation: 0,
        fuel: 0,
    };
    answered.chain([faulted]).collect()
}

fn facts() -> Vec<Fact> {
    let (request, executor) = (RequestId(300), ExecutorId(1));
    let by = Decided {
        author: Author::Policy(4),
        reason: 2,
    };
    let mut facts = vec![
        Fact::DeviceAttached(DeviceId(0)),
        Fact::ExecutorAttached(executor, DeviceId(0)),
        Fact::HealthChanged(executor, Health::Down),
        Fact::ExecutorLost(executor),
        Fact::ExecutorDetached(executor),
        Fact::Arrived {
            request,
            tenant: TenantId(1),
            model: Some(ModelId(0)),
            class: RequestClass::Throughput,
            preferred: Some(executor),
        },
        Fact::Admitted(request, by),
        Fact::Parked(request, Decided::BUILT_IN),
        Fact::Unparked(request),
        Fact::TurnedAway(request, by),
        Fact::Held(request, Some(Micros(5)), by),
        Fact::Placed {
            request,
            executor,
            into: PlacedIn::Queue,
            by,
        },
        Fact::Started(request, executor),
        Fact::Evicted {
            victim: request,
            executor,
            needy: RequestId(1),
            how: EvictHow::Recompute,
            blocks: 2,
            by,
        },
        Fact::Left(request, executor),
        Fact::Requeued(request, RequeuedWhy::Lost),
        Fact::Reserved(request, executor),
        Fact::ReservationDropped(request, executor),
        Fact::Short(request, ShortageCause::Blocks),
        Fact::Allotted {
            executor,
            tokens_max: 32,
            author: Author::BuiltIn,
        },
        Fact::Arranged {
            executor,
            arrangement: arrangement(),
            author: Author::Policy(4),
        },
        Fact::Refused(
            Author::Policy(4),
            Hook::Routing,
            RefusalCause::NoBlocks {
                needed: 3,
                available: 2,
            }
            .at(request, executor),
        ),
        Fact::Fault(
            Hook::Budget,
            PolicyFault {
                policy: 4,
                kind: FaultKind::Trap,
                detail: "unreachable".to_owned(),
            },
        ),
        Fact::Strike(Clock::Stalled, Hook::Preemption, request),
        Fact::StayEnded(Stay {
            request,
            executor,
            tenant: TenantId(1),
            model: Some(ModelId(0)),
            started: Some(Micros(6)),
            prompt_tokens: 12,
            cached_tokens: 8,
            output_tokens: 20,
        }),
    ];
    let outcomes = [
        Outcome::Finished { output_tokens: 20 },
        Outcome::Refused(RefusedWhy::NoRoom { retry_after: 1 }),
        Outcome::Refused(RefusedWhy::Closed { retry_after: 1 }),
        Outcome::Refused(RefusedWhy::NeverFits {
            blocks_needed: 9,
            blocks_total: 8,
        }),
        Outcome::Cancelled,
        Outcome::Expired(ExpiredWhy::Wait),
        Outcome::Failed(FailedWhy::NowhereLeft),
    ];
    facts.extend(outcomes.map(|outcome| Fact::Ended(request, outcome)));
    facts
}

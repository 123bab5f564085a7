//! The weight of what is pending, learnt from completions.

use pointsman_sdk::Instance;
use pointsman_sdk::fixture::{at, cached, device, load, request, tenant};
use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::wire::types::{
    Cached, Change, Completion, Device, ExecutorLoad, Extent, Name, NameKind, Overlap, Request,
    Tenant,
};

use super::{Fleet, MEMORY, placed};
use crate::reason::Reason;

/// Placements that are learnt from.
const LEARNT: u64 = 64;
const MICROS_PER_TOKEN: u64 = 250;

fn pending(tokens: u64) -> Change {
    Change::Load(ExecutorLoad {
        prefill_tokens_pending: tokens,
        ..load(0)
    })
}

/// The end of a request on executor 0, with one token.
fn completed(id: u64, prompt_tokens: u64, ttft: u64) -> Change {
    Change::Completed(Completion {
        request: id,
        executor: 0,
        model: None,
        tenant: 0,
        prompt_tokens: u32::try_from(prompt_tokens).unwrap(),
        cached_tokens: 0,
        output_tokens: 1,
        queued_micros: 6_000,
        ttft_micros: Some(ttft),
        total_micros: ttft,
        ok: true,
    })
}

/// The tokens of the prompt of this number, and those that are pending when it is placed.
fn tokens(number: u64) -> (u64, u64) {
    (100 + number * 37 % 900, number * 53 % 7 * 200)
}

/// Has the prompt of this number come and be placed on executor 0.
fn place(policy: &mut dyn Instance, number: u64, now: u64) {
    let (own, before) = tokens(number);
    let id = 100 + number;
    let arrives = Change::Waiting(Request {
        prompt_tokens: u32::try_from(own).unwrap(),
        arrived: now - 5_000,
        allowed: Some(vec![0]),
        ..request(id)
    });
    policy.observe(now, Extent::SinceLast, vec![pending(before), arrives]);
    let verdicts = policy.route(at(now), vec![cached(id)]);
    assert_eq!(verdicts[0].choice, placed(&[0]));
}

/// Has it end; its first token came after its own tokens and the `waited` part of those that were pending.
fn end(policy: &mut dyn Instance, number: u64, now: u64, waited: fn(u64) -> u64) {
    let (own, before) = tokens(number);
    let id = 100 + number;
    let completed = completed(id, own, 5_000 + prefill(own + waited(before)));
    let ended = vec![Change::WaitingGone(id), completed];
    policy.observe(now, Extent::SinceLast, ended);
}

/// Microseconds that so many tokens take.
fn prefill(tokens: u64) -> u64 {
    30_000 + MICROS_PER_TOKEN * tokens
}

/// A fleet of three, on whose first executor prompts were computed; each had its first token after its own
/// tokens and the `waited` part of those that were pending.
fn taught(waited: fn(u64) -> u64) -> Box<dyn Instance> {
    taught_by(MEMORY, waited)
}

/// The same with settings.
fn taught_by(settings: &str, waited: fn(u64) -> u64) -> Box<dyn Instance> {
    let mut policy = Fleet::of_three().policy(settings, Vec::new());
    for number in 0..LEARNT {
        let now = 1_000_000 * (number + 1);
        place(&mut *policy, number, now);
        let (own, before) = tokens(number);
        let took = 5_000 + prefill(own + waited(before));
        end(&mut *policy, number, now + took, waited);
    }
    policy
}

/// The first executor for a prompt of 100 tokens of which 64 are held on the first one, where 400 are pending.
fn choice(policy: &mut dyn Instance) -> Choice {
    let now = 1_000_000_000;
    let arrives = Change::Waiting(request(1));
    policy.observe(now, Extent::SinceLast, vec![pending(400), arrives]);
    let held = Overlap {
        executor: 0,
        device_tokens: 64,
        host_tokens: 0,
        disk_tokens: 0,
    };
    let asked = Cached {
        overlaps: Some(vec![held]),
        ..cached(1)
    };
    policy.route(at(now), vec![asked])[0].choice.clone()
}

#[test]
fn a_prefix_outweighs_pending_prefill_where_prompts_were_seen_not_to_wait_for_it() {
    let mut waits = taught(|pending| pending);
    assert_eq!(choice(&mut *waits), placed(&[1, 2, 0]));
    let mut does_not = taught(|_| 0);
    assert_eq!(choice(&mut *does_not), placed(&[0, 1, 2]));
}

#[test]
fn executors_are_learnt_of_where_more_are_in_flight_than_are_waited_for() {
    const IN_FLIGHT: u64 = 2048;
    let mut policy = Fleet::of_three().policy(MEMORY, Vec::new());
    for number in 0..IN_FLIGHT + 512 {
        let now = 100_000 * (number + 1);
        place(&mut *policy, number, now);
        if let Some(oldest) = number.checked_sub(IN_FLIGHT) {
            end(&mut *policy, oldest, now, |_| 0);
        }
    }
    assert_eq!(choice(&mut *policy), placed(&[0, 1, 2]));
}

#[test]
fn what_was_learnt_survives_a_reload() {
    let snapshot = taught(|_| 0).snapshot();
    let mut successor = Fleet::of_three().policy(MEMORY, Vec::new());
    successor.restore(snapshot).unwrap();
    assert_eq!(choice(&mut *successor), placed(&[0, 1, 2]));
}

#[test]
fn an_executor_that_goes_leaves_nothing_learnt() {
    let mut policy = taught(|_| 0);
    let back = Fleet::new().with(load(0), device(0)).0;
    policy.observe(
        900_000_000,
        Extent::SinceLast,
        vec![Change::ExecutorGone(0)],
    );
    policy.observe(900_000_001, Extent::SinceLast, back);
    assert_eq!(choice(&mut *policy), placed(&[1, 2, 0]));
}

#[test]
fn of_an_executor_that_is_gone_nothing_is_learnt() {
    let arrives = Request {
        allowed: Some(vec![0]),
        ..request(1)
    };
    let mut policy = Fleet::of_three().policy(MEMORY, vec![arrives]);
    assert_eq!(
        policy.route(at(100), vec![cached(1)])[0].choice,
        placed(&[0])
    );
    policy.observe(200, Extent::SinceLast, vec![Change::ExecutorGone(0)]);
    let before = policy.snapshot();
    let ended = vec![Change::WaitingGone(1), completed(1, 100, 300)];
    policy.observe(400, Extent::SinceLast, ended);
    assert_eq!(policy.snapshot(), before);
}

#[test]
fn prefill_that_nobody_waits_for_keeps_no_tenant_out() {
    let now = 1_000_000_000;
    let served = |id, tokens| {
        Change::Tenant(Tenant {
            prompt_tokens_total: tokens,
            ..tenant(id)
        })
    };
    let choice = |mut policy: Box<dyn Instance>| {
        let arrives = Change::Waiting(Request {
            arrived: now,
            allowed: Some(vec![0]),
            ..request(1)
        });
        // The tenant of the request is far beyond its share.
        let rows = vec![served(0, 90_000), served(1, 100), pending(5000), arrives];
        policy.observe(now, Extent::SinceLast, rows);
        policy.route(at(now), vec![cached(1)])[0].choice.clone()
    };
    assert!(matches!(choice(taught(|pending| pending)), Choice::Hold(_)));
    assert_eq!(choice(taught(|_| 0)), placed(&[0]));
}

/// The verdicts for requests of 20,000 tokens, where so many tokens are pending on executor 0.
fn behind(
    policy: &mut dyn Instance,
    tokens: u64,
    requests: Vec<Cached>,
    allowed: Option<Vec<u32>>,
) -> Vec<Verdict> {
    let now = 1_000_000_000;
    let arrive = requests.iter().map(|asked| {
        Change::Waiting(Request {
            prompt_tokens: 20_000,
            arrived: now,
            allowed: allowed.clone(),
            ..request(asked.request)
        })
    });
    let devices = (0..3).map(|id| {
        Change::Device(Device {
            blocks_total: 100_000,
            blocks_free: 100_000,
            ..device(id)
        })
    });
    let rows = devices.chain([pending(tokens)]).chain(arrive).collect();
    policy.observe(now, Extent::SinceLast, rows);
    policy.route(at(now), requests)
}

#[test]
fn a_prompt_waits_in_the_queue_where_others_would_be_prefilled_before_it() {
    let is_placed = |mut policy: Box<dyn Instance>, tokens| {
        let verdict = behind(&mut *policy, tokens, vec![cached(1)], Some(vec![0])).remove(0);
        let is_held = verdict.reason == Reason::Prefilling.index();
        assert_eq!(
            matches!(verdict.choice, Choice::Hold(Some(_))),
            is_held,
            "{verdict:?}"
        );
        !is_held
    };
    let fresh = || Fleet::of_three().policy(MEMORY, Vec::new());
    for in_turn in [|| taught(|pending| pending), fresh] {
        assert!(is_placed(in_turn(), 65_536));
        assert!(!is_placed(in_turn(), 65_537));
    }
    assert!(is_placed(taught(|_| 0), 10_000_000));
    // What is known survives a reload.
    let mut successor = fresh();
    successor.restore(taught(|_| 0).snapshot()).unwrap();
    assert!(is_placed(successor, 10_000_000));
}

#[test]
fn a_prompt_is_held_for_the_executor_that_has_most_of_it_until_others_would_be_sooner() {
    let held = Overlap {
        executor: 0,
        device_tokens: 16_000,
        host_tokens: 0,
        disk_tokens: 0,
    };
    let requests = (1..=8).map(|id| Cached {
        overlaps: Some(vec![held]),
        ..cached(id)
    });
    let mut policy = taught_by(r#"{"prefill-max": 8192}"#, |pending| pending);
    let verdicts = behind(&mut *policy, 8193, requests.collect(), None);
    let is_held = |verdict: &&Verdict| verdict.reason == Reason::Prefilling.index();
    // Each of them has 4,000 tokens of its own, and all 20,000 elsewhere.
    let waiting = verdicts.iter().take_while(is_held).count();
    assert_eq!(waiting, 6, "{verdicts:?}");
    assert_eq!(verdicts[waiting].choice, placed(&[1, 2, 0]));
}

#[test]
fn an_explanation_says_that_a_prompt_waits_for_the_executor_that_has_most_of_it() {
    let held = Overlap {
        executor: 0,
        device_tokens: 16_000,
        host_tokens: 0,
        disk_tokens: 0,
    };
    let asked = || Cached {
        overlaps: Some(vec![held]),
        ..cached(1)
    };
    let mut policy = taught_by(r#"{"prefill-max": 8192}"#, |pending| pending);
    let verdicts = behind(&mut *policy, 8193, vec![asked()], None);
    assert_eq!(verdicts[0].reason, Reason::Prefilling.index());
    let now = 1_000_000_000;
    let name = Change::Name(Name {
        kind: NameKind::Executor,
        id: 0,
        text: "gpu-0".into(),
    });
    policy.observe(now, Extent::SinceLast, vec![name]);
    let row = Request {
        prompt_tokens: 20_000,
        arrived: now,
        ..request(1)
    };
    let rows = policy.explain(at(now), row, asked());
    let notes = rows.iter().map(|row| (row.eligible, row.note.as_str()));
    let notes: Vec<_> = notes.collect();
    let first = "8193 tokens of other prompts are prefilled there first";
    let other = "the request waits for gpu-0";
    assert_eq!(notes, [(false, first), (false, other), (false, other)]);
}

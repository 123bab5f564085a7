//! The block pool, by the books.

use pointsman_events::BlockHash;

use super::*;

const A: RequestId = RequestId(1);
const B: RequestId = RequestId(2);
const C: RequestId = RequestId(3);
const HERE: ExecutorId = ExecutorId(0);
const THERE: ExecutorId = ExecutorId(1);
const HASHES: [BlockHash; 2] = [BlockHash(10), BlockHash(11)];

fn prefix() -> Prefix<'static> {
    Prefix::of_model(0, &HASHES)
}

fn nothing() -> Prefix<'static> {
    Prefix::of_model(0, &[])
}

/// Opens a lease of so many blocks. Returns how many of them are hits.
fn reserve(pool: &mut BlockPool, request: RequestId, prefix: Prefix<'_>, n: u32) -> u32 {
    pool.open(request, HERE, prefix);
    pool.grow(request, n);
    pool.cached_of(request)
}

fn publish(pool: &mut BlockPool, request: RequestId, prefix: Prefix<'_>) {
    pool.publish(request, prefix, u32::MAX);
}

#[test]
fn a_published_prefix_is_shared_and_outlives_its_maker() {
    let mut pool = BlockPool::new(1, 4);
    assert_eq!(reserve(&mut pool, A, prefix(), 3), 0);
    publish(&mut pool, A, prefix());
    assert_eq!(pool.available_for(prefix()), 3, "one free and two to share");
    assert_eq!(reserve(&mut pool, B, prefix(), 3), 2);
    assert_eq!(pool.exclusive(A), 1);
    assert_eq!(pool.freed_by(&BTreeSet::from([A, B])), 4);
    pool.close(A, prefix());
    pool.check().unwrap();
    pool.close(B, prefix());
    pool.check().unwrap();
    assert_eq!((pool.free(), pool.cached()), (2, 2));
    assert_eq!(pool.leading_hits(prefix()), 2);
}

#[test]
fn a_prompt_is_published_block_by_block_as_it_is_prefilled() {
    let mut pool = BlockPool::new(1, 4);
    reserve(&mut pool, A, prefix(), 3);
    for full in [0, 1, 1, 2, 3] {
        pool.publish(A, prefix(), full);
        assert_eq!(pool.leading_hits(prefix()), full.min(2));
        pool.check().unwrap();
    }
    // One that has left and comes back begins anew with what is there.
    pool.close(A, prefix());
    pool.forget_contents();
    assert_eq!(reserve(&mut pool, A, prefix(), 3), 0);
    pool.publish(A, prefix(), 2);
    assert_eq!(pool.leading_hits(prefix()), 2);
    pool.check().unwrap();
}

#[test]
fn a_prompt_that_was_computed_twice_is_published_as_long_as_one_copy_is_there() {
    let mut pool = BlockPool::new(1, 4);
    let twice = |pool: &mut BlockPool| {
        for request in [A, B] {
            assert_eq!(reserve(pool, request, prefix(), 2), 0);
        }
        publish(pool, A, prefix());
        publish(pool, B, prefix());
    };
    twice(&mut pool);
    pool.close(A, prefix());
    reserve(&mut pool, C, nothing(), 2);
    assert_eq!(pool.leading_hits(prefix()), 0, "the room was needed");
    pool.close(B, prefix());
    assert_eq!(pool.leading_hits(prefix()), 2);
    pool.check().unwrap();
    // Contents that are gone are not published again.
    pool.close(C, nothing());
    pool.forget_contents();
    twice(&mut pool);
    pool.forget_contents();
    pool.close(A, prefix());
    pool.close(B, prefix());
    assert_eq!(pool.leading_hits(prefix()), 0);
    pool.check().unwrap();
}

#[test]
fn a_block_that_several_share_is_used_once_on_each_executor() {
    let mut pool = BlockPool::new(1, 8);
    reserve(&mut pool, A, prefix(), 3);
    publish(&mut pool, A, prefix());
    reserve(&mut pool, B, prefix(), 3);
    assert_eq!(pool.used_by(HERE), 4, "two shared ones, and one of each");
    pool.open(C, THERE, prefix());
    pool.grow(C, 3);
    assert_eq!((pool.used_by(HERE), pool.used_by(THERE)), (4, 3));
    pool.close(A, prefix());
    assert_eq!((pool.used_by(HERE), pool.used_by(THERE)), (3, 3));
    pool.close(B, prefix());
    assert_eq!((pool.used_by(HERE), pool.used_by(THERE)), (0, 3));
    pool.check().unwrap();
}

#[test]
fn blocks_of_another_model_with_the_same_hashes_are_no_hits() {
    let mut pool = BlockPool::new(1, 8);
    let other = Prefix::of_model(1, &HASHES);
    reserve(&mut pool, A, prefix(), 3);
    publish(&mut pool, A, prefix());
    assert_eq!(reserve(&mut pool, B, other, 3), 0);
    publish(&mut pool, B, other);
    for prefix in [prefix(), other] {
        assert_eq!(pool.leading_hits(prefix), 2);
    }
    assert_eq!(pool.used_by(HERE), 6);
    pool.check().unwrap();
}

#[test]
fn what_stays_shared_need_not_be_freed() {
    let mut pool = BlockPool::new(1, 6);
    reserve(&mut pool, A, prefix(), 3);
    publish(&mut pool, A, prefix());
    reserve(&mut pool, B, nothing(), 3);
    let after =
        |leaving: &[RequestId]| pool.available_after(&leaving.iter().copied().collect(), prefix());
    assert_eq!(after(&[]), 2, "the two that A shares");
    assert_eq!(after(&[B]), 5);
    assert_eq!(
        after(&[A, B]),
        6,
        "what A leaves is shared or free, not both"
    );
    let whatever =
        |victims: &[RequestId]| pool.shared_whatever_leaves(prefix(), victims.iter().copied());
    assert_eq!(whatever(&[B]), 2);
    assert_eq!(whatever(&[A, B]), 0, "A counts them as its own");
}

#[test]
fn cache_is_dropped_from_the_tail_when_the_room_is_needed() {
    let mut pool = BlockPool::new(1, 2);
    reserve(&mut pool, A, prefix(), 2);
    publish(&mut pool, A, prefix());
    pool.close(A, prefix());
    reserve(&mut pool, B, nothing(), 1);
    assert_eq!(pool.leading_hits(prefix()), 1, "the tail went first");
    assert_eq!(pool.evicted_total(), 1);
    pool.check().unwrap();
}

#[test]
fn a_lease_gets_what_there_is_and_grows_later() {
    let mut pool = BlockPool::new(1, 3);
    reserve(&mut pool, A, nothing(), 2);
    reserve(&mut pool, B, nothing(), 3);
    assert_eq!(pool.lease(B).len(), 1);
    assert!(pool.grow(B, 3).is_empty());
    pool.close(A, nothing());
    assert_eq!(pool.grow(B, 3).len(), 2);
    assert_eq!(pool.available(), 0);
    pool.check().unwrap();
}

#[test]
fn block_counts_round_up() {
    assert_eq!(blocks_for(0, 16), 0);
    assert_eq!(blocks_for(16, 16), 1);
    assert_eq!(blocks_for(17, 16), 2);
}

//! The best holders of a prompt, where there are more than policies are told of.

use std::cmp::Reverse;

use pointsman_events::rows::Overlap;

/// Tokens that an executor holds: in its device's memory, down to host memory, down to the disk.
type Depths = [u32; 3];

/// Keeps the `max` best holders, best first: the best of the device tier, the best down to host
/// memory, the best down to the disk, then the second of each, and so on. So no number of holders
/// in one tier crowds out the best one of another. Returns the fewest tokens that one of those left
/// out holds on its device.
///
/// The list comes in attach order, which decides between equals.
pub fn keep_best(overlaps: &mut Vec<Overlap>, max: usize) -> Option<u32> {
    if overlaps.len() <= max {
        overlaps.sort_by_key(|it| rank(it, 0));
        return None;
    }
    let rankings = [0, 1, 2].map(|tier| ranking(overlaps, tier, max));
    let mut listed = vec![false; overlaps.len()];
    let places = (0..max).flat_map(|place| rankings.iter().map(move |ranking| ranking[place]));
    let mut left = max;
    for idx in places {
        if left > 0 && !listed[idx] {
            listed[idx] = true;
            left -= 1;
        }
    }
    let unlisted = overlaps.iter().zip(&listed).filter(|(_, listed)| !**listed);
    let floor = unlisted.map(|(it, _)| it.device_tokens).min();
    let mut is_listed = listed.into_iter();
    overlaps.retain(|_| is_listed.next().unwrap_or(false));
    overlaps.sort_by_key(|it| rank(it, 0));
    floor
}

/// The `max` best holders down to a tier, best first, as places in the list.
fn ranking(overlaps: &[Overlap], tier: usize, max: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..overlaps.len()).collect();
    let key = |idx: &usize| (rank(&overlaps[*idx], tier), *idx);
    places.select_nth_unstable_by_key(max, key);
    places.truncate(max);
    places.sort_unstable_by_key(key);
    places
}

/// The rank of a holder down to a tier; ties go to the one that holds more on its device, then in
/// all.
fn rank(it: &Overlap, tier: usize) -> Reverse<(u32, u32, u32)> {
    let host = it.device_tokens.saturating_add(it.host_tokens);
    let depths: Depths = [it.device_tokens, host, host.saturating_add(it.disk_tokens)];
    let [device, host, disk] = depths;
    Reverse(match tier {
        0 => (device, host, disk),
        1 => (host, device, disk),
        _ => (disk, device, host),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_events::ExecutorId;

    /// Keeps the best of holders with these tokens by tier. Returns their numbers, and the floor.
    fn check(holders: &[[u32; 3]], max: usize, expected: &[u32], floor: Option<u32>) {
        let mut overlaps: Vec<Overlap> = (0..).zip(holders).map(holder).collect();
        let told = keep_best(&mut overlaps, max);
        let kept: Vec<u32> = overlaps.iter().map(|it| it.executor.0).collect();
        assert_eq!(
            (kept.as_slice(), told),
            (expected, floor),
            "{max} of {holders:?}"
        );
    }

    fn holder((id, tokens): (u32, &[u32; 3])) -> Overlap {
        let [device_tokens, host_tokens, disk_tokens] = *tokens;
        Overlap {
            executor: ExecutorId(id),
            device_tokens,
            host_tokens,
            disk_tokens,
        }
    }

    #[test]
    fn the_best_of_the_device_is_not_crowded_out_by_more_tokens_on_disk() {
        let holders = [[0, 0, 90], [0, 0, 80], [16, 0, 0], [0, 0, 70]];
        check(&holders, 1, &[2], Some(0));
        check(&holders, 2, &[2, 0], Some(0));
        check(&holders, 4, &[2, 0, 1, 3], None);
    }

    #[test]
    fn a_prefix_that_all_devices_hold_crowds_out_no_other_tier() {
        let holders = [[16, 0, 0], [16, 0, 0], [16, 0, 0], [16, 0, 64], [16, 32, 0]];
        check(&holders, 3, &[4, 3, 0], Some(16));
    }

    #[test]
    fn equals_come_in_attach_order() {
        let holders = [[8, 0, 0], [8, 0, 0], [8, 0, 0]];
        check(&holders, 2, &[0, 1], Some(8));
        check(&holders, 0, &[], Some(8));
    }
}

//! What was learnt, and the requests that are remembered, as bytes for a fresh instance.

use pointsman_sdk::snapshot::{put_len, take, take_u32, take_u64};

use crate::lengths::{Account, BUCKETS, Distribution, Group, Lengths, Mark};
use crate::seen::{Entry, Seen};

/// Writes the state; [`restore`] reads it.
pub(crate) fn snapshot(lengths: &Lengths, seen: &Seen) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_len(&mut bytes, lengths.groups().count());
    for (group, distribution) in lengths.groups() {
        put_group(&mut bytes, group);
        let buckets = distribution.buckets.iter();
        bytes.extend(buckets.flat_map(|count| count.to_le_bytes()));
    }
    for (request, entry) in seen.entries() {
        bytes.extend(request.to_le_bytes());
        bytes.extend(entry.output_tokens_max.to_le_bytes());
        put_len(&mut bytes, entry.labels.len());
        bytes.extend(entry.labels.iter().flat_map(|label| label.to_le_bytes()));
    }
    bytes
}

/// Reads the state that [`snapshot`] wrote.
///
/// # Errors
///
/// A sentence about bytes that it cannot have written.
pub(crate) fn restore(bytes: &[u8]) -> Result<(Lengths, Seen), String> {
    let mut left = bytes;
    let cut = || format!("a snapshot of {} bytes is cut off", bytes.len());
    let mut groups = Vec::new();
    for _ in 0..take_u32(&mut left).ok_or_else(cut)? {
        groups.push(take_group(&mut left).ok_or_else(cut)?);
    }
    let mut entries = Vec::new();
    while !left.is_empty() {
        entries.push(take_entry(&mut left).ok_or_else(cut)?);
    }
    Ok((Lengths::of(groups), Seen::of(entries)))
}

/// Writes which of a group's parts there are, then the parts.
fn put_group(bytes: &mut Vec<u8>, group: &Group) {
    let (tenant, model) = match group.of {
        Some(account) => (Some(account.tenant), account.model),
        None => (None, None),
    };
    let (mark, value) = match group.mark {
        Mark::None => (0, 0),
        Mark::Size(bits) => (1, bits),
        Mark::Label(label) => (2, label),
    };
    bytes.push(u8::from(tenant.is_some()) + 2 * u8::from(model.is_some()) + 4 * mark);
    for number in [tenant.unwrap_or(0), model.unwrap_or(0), value] {
        bytes.extend(number.to_le_bytes());
    }
}

fn take_group(left: &mut &[u8]) -> Option<(Group, Distribution)> {
    let [parts] = take(left)?;
    let [tenant, model, value] = [take_u32(left)?, take_u32(left)?, take_u32(left)?];
    let mark = match parts >> 2 {
        0 => Mark::None,
        1 => Mark::Size(value),
        2 => Mark::Label(value),
        _ => return None,
    };
    let of = (parts & 1 == 1).then_some(Account {
        tenant,
        model: (parts & 2 == 2).then_some(model),
    });
    let mut buckets = [0; BUCKETS];
    for count in &mut buckets {
        *count = u16::from_le_bytes(take(left)?);
    }
    Some((Group { of, mark }, Distribution { buckets }))
}

fn take_entry(left: &mut &[u8]) -> Option<(u64, Entry)> {
    let request = take_u64(left)?;
    let output_tokens_max = take_u32(left)?;
    let labels = (0..take_u32(left)?).map(|_| take_u32(left));
    let entry = Entry {
        labels: labels.collect::<Option<_>>()?,
        output_tokens_max,
    };
    Some((request, entry))
}

#[cfg(test)]
mod tests {
    use pointsman_sdk::fixture::request;
    use pointsman_sdk::wire::types::Request;

    use super::{restore, snapshot};
    use crate::lengths::{Features, Lengths};
    use crate::seen::Seen;

    #[test]
    fn a_snapshot_has_all_that_was_learnt_and_seen() {
        let waiting = [
            Request {
                labels: Some(vec![7, u32::MAX]),
                ..request(3)
            },
            Request {
                tenant: u32::MAX,
                model: Some(5),
                ..request(u64::MAX)
            },
        ];
        let (mut lengths, mut seen) = (Lengths::default(), Seen::default());
        for request in &waiting {
            lengths.learn(Features::of_request(request), 700);
            seen.note(request);
        }
        let bytes = snapshot(&lengths, &seen);
        assert_eq!(restore(&bytes), Ok((lengths, seen)));
        let empty = snapshot(&Lengths::default(), &Seen::default());
        assert_eq!(restore(&empty), Ok(Default::default()));
        for len in 0..bytes.len() {
            // Where an entry of a request ends nothing is missing.
            let said = restore(&bytes[..len]);
            let whole = said.is_ok_and(|(_, seen)| seen.entries().count() < waiting.len());
            assert!(whole || restore(&bytes[..len]).is_err(), "{len}");
        }
    }
}

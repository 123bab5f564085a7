//! Bytes of a snapshot, written one after the other and read from the front.

/// Takes the first bytes off a snapshot; absent: it has no more of them, and is left as it is.
///
/// ```
/// use pointsman_sdk::snapshot::take;
///
/// let mut left: &[u8] = &[7, 0, 1];
/// assert_eq!(take(&mut left).map(u16::from_le_bytes), Some(7));
/// assert_eq!(take::<2>(&mut left), None);
/// assert_eq!(left, [1]);
/// ```
pub fn take<const N: usize>(left: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = left.split_first_chunk::<N>()?;
    *left = rest;
    Some(*first)
}

/// Takes a number of 32 bits off a snapshot, as `to_le_bytes` and [`put_len`] write it; absent as by [`take`].
pub fn take_u32(left: &mut &[u8]) -> Option<u32> {
    take(left).map(u32::from_le_bytes)
}

/// Takes a number of 64 bits off a snapshot, as `to_le_bytes` writes it; absent as by [`take`].
pub fn take_u64(left: &mut &[u8]) -> Option<u64> {
    take(left).map(u64::from_le_bytes)
}

/// Writes a number that may be absent, which [`take_option`] reads.
///
/// ```
/// use pointsman_sdk::snapshot::{put_option, take_option};
///
/// let mut bytes = Vec::new();
/// put_option(&mut bytes, Some(7));
/// put_option(&mut bytes, None);
/// let mut left = bytes.as_slice();
/// assert_eq!(take_option(&mut left), Some(Some(7)));
/// assert_eq!(take_option(&mut left), Some(None));
///
/// let mut cut = &bytes[..8];
/// assert_eq!(take_option(&mut cut), None);
/// assert_eq!(cut, &bytes[..8]);
/// ```
pub fn put_option(bytes: &mut Vec<u8>, number: Option<u64>) {
    bytes.push(u8::from(number.is_some()));
    bytes.extend(number.unwrap_or(0).to_le_bytes());
}

/// Takes what [`put_option`] wrote off a snapshot; absent as by [`take`].
pub fn take_option(left: &mut &[u8]) -> Option<Option<u64>> {
    let [is_there, number @ ..] = take::<9>(left)?;
    Some((is_there != 0).then(|| u64::from_le_bytes(number)))
}

/// Writes how many entries follow, which [`take_u32`] reads; more than 32 bits hold count as the most they do.
///
/// ```
/// use pointsman_sdk::snapshot::{put_len, take_u32};
///
/// let mut bytes = Vec::new();
/// put_len(&mut bytes, 7);
/// assert_eq!(take_u32(&mut bytes.as_slice()), Some(7));
/// ```
pub fn put_len(bytes: &mut Vec<u8>, len: usize) {
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    bytes.extend(len.to_le_bytes());
}

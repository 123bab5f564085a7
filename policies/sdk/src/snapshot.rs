//! Bytes of a snapshot, read from the front.

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

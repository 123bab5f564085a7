//! Why an answer is what it is: the texts the host shows.

/// A reason; its index is what an answer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Room,
    Parked,
    Full,
    Displaced,
    LeastUrgent,
    Background,
    Unknown,
    Overdrawn,
    PlaceOfAnother,
    BeyondShare,
    SlotTaken,
    BlocksFromNeighbour,
    BlocksFromOwn,
    BlocksFromLater,
    ModelDriven,
}

const ALL: [(Reason, &str); 15] = [
    (Reason::Room, "there is room"),
    (Reason::Parked, "the queue is full: waits outside"),
    (Reason::Full, "the queue is full"),
    (
        Reason::Displaced,
        "the queue is full: takes the place of the oldest less urgent",
    ),
    (
        Reason::LeastUrgent,
        "the queue is full of more urgent requests",
    ),
    (
        Reason::Background,
        "the queue is full, and it would not wait",
    ),
    (Reason::Unknown, "not told about this request"),
    (
        Reason::Overdrawn,
        "its tenant is over its tokens per minute, and others wait",
    ),
    (
        Reason::PlaceOfAnother,
        "the queue is full: takes the place of a tenant beyond its share",
    ),
    (
        Reason::BeyondShare,
        "the queue is full, and its tenant is beyond its share",
    ),
    (Reason::SlotTaken, "a less urgent sequence gives its slot"),
    (
        Reason::BlocksFromNeighbour,
        "the least urgent engine of the device gives blocks",
    ),
    (
        Reason::BlocksFromOwn,
        "less urgent sequences of the same engine give blocks",
    ),
    (
        Reason::BlocksFromLater,
        "later sequences as urgent give blocks",
    ),
    (Reason::ModelDriven, "a less urgent model gives its place"),
];

impl Reason {
    pub(crate) fn texts() -> Vec<String> {
        ALL.iter().map(|&(_, text)| text.to_owned()).collect()
    }

    pub(crate) fn index(self) -> u16 {
        self as u16
    }
}

#[cfg(test)]
mod tests {
    use super::ALL;

    #[test]
    fn texts_stand_in_the_order_of_their_reasons() {
        for (index, (reason, _)) in ALL.iter().enumerate() {
            assert_eq!(usize::from(reason.index()), index);
        }
    }
}

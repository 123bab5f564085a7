//! Why a verdict is what it is: the texts the host shows.

/// A reason; its index is what an answer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    InTime,
    NoDeadline,
    Late,
    TooLate,
    FasterIsBusy,
    NoRoom,
    Nowhere,
    Unknown,
}

const ALL: [(Reason, &str); 8] = [
    (Reason::InTime, "the least used that makes the deadline"),
    (Reason::NoDeadline, "the least used"),
    (Reason::Late, "late, and room is left"),
    (
        Reason::TooLate,
        "no executor can make the deadline any more",
    ),
    (
        Reason::FasterIsBusy,
        "what would make the deadline has no room",
    ),
    (Reason::NoRoom, "no room anywhere"),
    (Reason::Nowhere, "no live executor may take it"),
    (Reason::Unknown, "not told about this request"),
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
